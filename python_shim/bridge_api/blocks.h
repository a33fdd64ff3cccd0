// SPDX-License-Identifier: Apache-2.0
// Blocks: the way of every tensor's memory. For threads and failure see
// setup.h.
#ifndef STRATALLOC_PYTHON_SHIM_BRIDGE_API_BLOCKS_H_
#define STRATALLOC_PYTHON_SHIM_BRIDGE_API_BLOCKS_H_

#include <optional>
#include <string>

#include "accounting/malloc_hint.h"
#include "allocator/base/bytes.h"
#include "allocator/base/export.h"
#include "allocator/base/ids.h"
#include "allocator/base/result.h"
#include "allocator/values/views.h"

namespace stratalloc::core {

// kOutOfMemory has native's whole text ("CUDA out of memory. Tried to allocate
// ..."). Waits for events, copies and disk. REQUIRES: size > 0.
STRATALLOC_API Result<AllocatedBlock> Malloc(int device, Bytes size,
                                             StreamId stream, MallocHint hint);
// The same block at `address`, out of what is cached there
// (DeviceAllocator::MallocAt). kNotFound if it cannot be had.
STRATALLOC_API Result<AllocatedBlock> MallocAt(int device, Bytes size,
                                               StreamId stream, MallocHint hint,
                                               Address address);
// For the history and the event rings: such a malloc of this thread was
// refused with kOutOfMemory. Returns the size as a block would have had it.
STRATALLOC_API Bytes RecordOutOfMemory(int device, Bytes size, StreamId stream,
                                       MallocHint hint, Bytes free_bytes);
// Then, for who listens (c_api/refusals.h): what is said behind `message`, or
// "". No lock or GIL is held here that the listener may want.
STRATALLOC_API std::string TellRefusedMalloc(int device, Bytes size,
                                             StreamId stream, MallocHint hint,
                                             const std::string& message);
// For deleters: never fails. *freed describes the block, and the answer is its
// device. nullopt if nothing was freed: of nullptr; in a forked child; or of an
// unknown pointer or a double free, which is reported with the owner that it
// last had.
STRATALLOC_API std::optional<DeviceIndex> Free(Address address,
                                               AllocatedBlock* freed);
// Is this the base of a live block of ours? (raw_delete asks first.)
STRATALLOC_API bool Owns(Address address);

// Somebody else made `stream` and may destroy it: from now on nobody asks it
// anything of whom it is not an argument.
STRATALLOC_API void NoteExternalStream(StreamId stream);
// PyTorch made `stream`, and nobody destroys it, whatever was said before.
STRATALLOC_API void NoteLastingStream(StreamId stream);
// `device` is the stream's, which need not be the block's: default streams of
// all devices are 0.
STRATALLOC_API Status RecordStream(Address address, int device,
                                   StreamId stream);

// The segment range that holds `address` (native's rule), without its blocks.
STRATALLOC_API Result<SegmentView> BaseAllocation(Address address);
// Of all devices. `counted_in_routes`: the wait for the streams counts as one
// (num_sync_all_streams) while an allocation route is open, too.
STRATALLOC_API Status EmptyCache(bool counted_in_routes);
STRATALLOC_API Result<Bytes> LargestCached(int device);

}  // namespace stratalloc::core

#endif  // STRATALLOC_PYTHON_SHIM_BRIDGE_API_BLOCKS_H_
