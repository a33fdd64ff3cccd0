// SPDX-License-Identifier: Apache-2.0
//
// ipc.h: memory and events shared between processes, as both the driver and
// the runtime offer them. A 64-byte handle says which process, which of its
// files, which table entry there, and which allocation or event that was; the
// importer looks at all of it. Whose bytes they are and how long they live is
// told in shared_file.h and extents.h.
//
// What is answered: kInvalidValue for a handle that is none (or of the other
// kind), kInvalidContext in the process that made it, kInvalidHandle when the
// allocation, the event or the process is gone, kMapFailed when the system
// does not let this process look into the other one.
//
// Order between processes: recording an interprocess event executes its
// stream up to there, so what another process sees recorded has happened. A
// wait there orders later work after everything this process had recorded for
// others, and what this process waits for from others proves as much to it.
//
// Thread-safety: take the simulator's lock themselves.

#ifndef STRATALLOC_TESTS_SIMULATOR_CUDASIM_IPC_H_
#define STRATALLOC_TESTS_SIMULATOR_CUDASIM_IPC_H_

#include <cstdint>

#include "tests/simulator/cudasim/events.h"
#include "tests/simulator/cudasim/status.h"

namespace cudasim {

// The size of cudaIpcMemHandle_t, cudaIpcEventHandle_t and the driver's.
inline constexpr unsigned kIpcHandleBytes = 64;

// `handle` points at kIpcHandleBytes. `address`: anywhere in an allocation of
// cudaMalloc; the handle means the whole of it.
Status IpcExportMemory(void* handle, uint64_t address);
// `flags` must be 1 (enable peer access if the memory is on another device).
// A second open gives the same address, and needs a second close.
Status IpcOpenMemory(const void* handle, unsigned flags, uint64_t* address);
Status IpcCloseMemory(const char* name, uint64_t address);

// kInvalidHandle for an event that was not created for it.
Status IpcExportEvent(void* handle, uint64_t event);
Status IpcOpenEvent(const void* handle, uint64_t* event);

// cuMemExportToShareableHandle and its counterpart, for file descriptors. The
// descriptor belongs to the caller and holds the memory while it is open.
Status ExportDescriptor(uint64_t handle, int* descriptor);
Status ImportDescriptor(int descriptor, uint64_t* handle);

// A violation if the owner of an imported event has destroyed it. `what` is
// the call. REQUIRES: the simulator's lock.
void CheckEventOwner(const char* what, const Event& event);
// Tells the processes that share the event. REQUIRES: the simulator's lock.
void NoteSharedRecord(const Event& event);

}  // namespace cudasim

#endif  // STRATALLOC_TESTS_SIMULATOR_CUDASIM_IPC_H_
