// SPDX-License-Identifier: Apache-2.0
//
// nccl.h: NCCL's collectives between the simulated devices of one process.
//
// PyTorch's DataParallel broadcasts and adds tensors with NCCL wherever the
// library is compiled in, and NCCL's own library cannot reach a simulated
// device. libcudart.so.13 is loaded before it and defines the functions that
// libtorch_cuda.so imports from it, so the linker chooses these.
//
// A communicator belongs to a clique made by ncclCommInitAll: one per device,
// one process. Calls of a clique are gathered between ncclGroupStart and
// ncclGroupEnd and run when the last rank's is there: all streams first wait
// for each other, the bytes are moved and added by the host in the order of the
// ranks, all streams then wait for that. Communicators between processes
// (ncclCommInitRank) are refused by name: use gloo.
//
// Thread-safety: a group belongs to its thread; cliques are immutable.
// Lifetime: communicators live until ncclCommDestroy or ncclCommAbort.

#ifndef STRATALLOC_TESTS_SIMULATOR_CUDASIM_NCCL_H_
#define STRATALLOC_TESTS_SIMULATOR_CUDASIM_NCCL_H_

#include <cuda_runtime_api.h>

#include <cstddef>

extern "C" {

struct ncclComm;

// The numbers are NCCL's own.
enum ncclResult : int {
  kNcclSuccess = 0,
  kNcclUnhandledCudaError = 1,
  kNcclInvalidArgument = 4,
  kNcclInvalidUsage = 5,
};

int ncclGetVersion(int* version);
const char* ncclGetErrorString(int result);
const char* ncclGetLastError(ncclComm* comm);
int ncclCommInitAll(ncclComm** comms, int devices, const int* list);
int ncclCommDestroy(ncclComm* comm);
int ncclCommAbort(ncclComm* comm);
int ncclCommFinalize(ncclComm* comm);
int ncclCommGetAsyncError(ncclComm* comm, int* error);
int ncclCommCount(const ncclComm* comm, int* count);
int ncclCommUserRank(const ncclComm* comm, int* rank);
int ncclGroupStart();
int ncclGroupEnd();
int ncclBcast(void* buffer, size_t count, int type, int root, ncclComm* comm,
              cudaStream_t stream);
int ncclBroadcast(const void* send, void* receive, size_t count, int type,
                  int root, ncclComm* comm, cudaStream_t stream);
int ncclReduce(const void* send, void* receive, size_t count, int type, int op,
               int root, ncclComm* comm, cudaStream_t stream);
int ncclAllReduce(const void* send, void* receive, size_t count, int type,
                  int op, ncclComm* comm, cudaStream_t stream);
int ncclReduceScatter(const void* send, void* receive, size_t count, int type,
                      int op, ncclComm* comm, cudaStream_t stream);
int ncclAllGather(const void* send, void* receive, size_t count, int type,
                  ncclComm* comm, cudaStream_t stream);
}

#endif  // STRATALLOC_TESTS_SIMULATOR_CUDASIM_NCCL_H_
