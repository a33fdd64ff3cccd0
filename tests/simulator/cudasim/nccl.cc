// SPDX-License-Identifier: Apache-2.0

#include "tests/simulator/cudasim/nccl.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <vector>

#include "tests/simulator/cudasim/control.h"

struct ncclComm {
  int rank;
  int device;
  std::shared_ptr<std::vector<ncclComm*>> clique;  // by rank
};

namespace {

constexpr int kVersion = 22809;  // what torch 2.11's wheel is built with

enum class Kind { kBroadcast, kReduce, kAllReduce, kReduceScatter, kAllGather };

constexpr const char* kNames[] = {"ncclBroadcast", "ncclReduce",
                                  "ncclAllReduce", "ncclReduceScatter",
                                  "ncclAllGather"};

struct Call {
  Kind kind;
  const void* send;
  void* receive;
  size_t count;
  int type;
  int op;
  int root;
  ncclComm* comm;
  cudaStream_t stream;
};

thread_local int group_depth = 0;
thread_local std::vector<Call> group_calls;
thread_local const char* last_error = "no error";

int Fail(int result, const char* why) {
  last_error = why;
  std::fprintf(stderr, "cudasim: NCCL: %s\n", why);
  return result;
}

// Bytes of an element of NCCL's types 0 to 11; 0 for others.
size_t SizeOf(int type) {
  constexpr size_t kSizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
  return type >= 0 && type < 12 ? kSizes[type] : 0;
}

// bfloat16 as its upper half of a float; rounds to the nearest, ties to even.
struct Bfloat16 {
  uint16_t bits;
  operator float() const {  // NOLINT(google-explicit-constructor)
    const uint32_t wide = static_cast<uint32_t>(bits) << 16;
    float value;
    std::memcpy(&value, &wide, sizeof(value));
    return value;
  }
  static Bfloat16 From(float value) {
    uint32_t wide;
    std::memcpy(&wide, &value, sizeof(wide));
    if (value != value) return {0x7fc0};
    wide += 0x7fff + (wide >> 16 & 1);
    return {static_cast<uint16_t>(wide >> 16)};
  }
};

template <typename T>
struct Arithmetic {
  using Wide = T;
  static T Narrow(Wide value) { return value; }
};
template <>
struct Arithmetic<_Float16> {
  using Wide = float;
  static _Float16 Narrow(float value) { return static_cast<_Float16>(value); }
};
template <>
struct Arithmetic<Bfloat16> {
  using Wide = float;
  static Bfloat16 Narrow(float value) { return Bfloat16::From(value); }
};

// Element by element over the ranks, in their order.
template <typename T>
void Combine(const std::vector<const char*>& sources, char* target,
             size_t count, int op) {
  using Wide = typename Arithmetic<T>::Wide;
  T* out = reinterpret_cast<T*>(target);
  for (size_t i = 0; i < count; ++i) {
    Wide sum = reinterpret_cast<const T*>(sources[0])[i];
    for (size_t rank = 1; rank < sources.size(); ++rank) {
      const Wide next = reinterpret_cast<const T*>(sources[rank])[i];
      switch (op) {
        case 1:
          sum = sum * next;
          break;
        case 2:
          sum = std::max(sum, next);
          break;
        case 3:
          sum = std::min(sum, next);
          break;
        default:
          sum = sum + next;
      }
    }
    if (op == 4) sum = sum / static_cast<Wide>(sources.size());
    out[i] = Arithmetic<T>::Narrow(sum);
  }
}

void CombineBytes(const std::vector<const char*>& sources, char* target,
                  size_t count, int type, int op) {
  switch (type) {
    case 0:
      return Combine<int8_t>(sources, target, count, op);
    case 1:
      return Combine<uint8_t>(sources, target, count, op);
    case 2:
      return Combine<int32_t>(sources, target, count, op);
    case 3:
      return Combine<uint32_t>(sources, target, count, op);
    case 4:
      return Combine<int64_t>(sources, target, count, op);
    case 5:
      return Combine<uint64_t>(sources, target, count, op);
    case 6:
      return Combine<_Float16>(sources, target, count, op);
    case 7:
      return Combine<float>(sources, target, count, op);
    case 8:
      return Combine<double>(sources, target, count, op);
    default:
      return Combine<Bfloat16>(sources, target, count, op);
  }
}

// Keeps the calling thread's current device.
class DeviceScope {
 public:
  DeviceScope() { cudaGetDevice(&before_); }
  ~DeviceScope() { cudaSetDevice(before_); }
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  int before_ = 0;
};

// `later` waits for all that `earlier` holds now.
bool Order(const Call& earlier, const Call& later) {
  cudaEvent_t event;
  cudaSetDevice(earlier.comm->device);
  if (cudaEventCreateWithFlags(&event, cudaEventDisableTiming) != cudaSuccess) {
    return false;
  }
  bool ordered = cudaEventRecord(event, earlier.stream) == cudaSuccess;
  cudaSetDevice(later.comm->device);
  ordered =
      ordered && cudaStreamWaitEvent(later.stream, event, 0) == cudaSuccess;
  return cudaEventDestroy(event) == cudaSuccess && ordered;
}

// What one rank of a call reads and writes, in bytes.
struct Ranges {
  size_t read;
  size_t written;
};
Ranges RangesOf(const Call& call) {
  const size_t bytes = call.count * SizeOf(call.type);
  const size_t ranks = call.comm->clique->size();
  const bool root = call.comm->rank == call.root;
  switch (call.kind) {
    case Kind::kBroadcast:
      return {root ? bytes : 0, bytes};
    case Kind::kReduce:
      return {bytes, root ? bytes : 0};
    case Kind::kAllReduce:
      return {bytes, bytes};
    case Kind::kReduceScatter:
      return {bytes * ranks, bytes};
    default:
      return {bytes, bytes * ranks};
  }
}

bool Reachable(const void* address, size_t bytes) {
  return bytes == 0 || cudasim_range_is_accessible(
                           reinterpret_cast<uint64_t>(address), bytes) != 0;
}

char* View(const void* address) {
  return static_cast<char*>(cudasim_host_view(const_cast<void*>(address)));
}

void Compute(const std::vector<Call>& calls) {
  const Call& first = calls[0];
  const size_t bytes = first.count * SizeOf(first.type);
  const size_t ranks = calls.size();
  if (first.kind == Kind::kBroadcast) {
    const char* source = View(calls[first.root].send);
    for (const Call& call : calls) {
      std::memmove(View(call.receive), source, bytes);
    }
    return;
  }
  // Results may lie over inputs: all of them first, then the writes.
  std::vector<char> result(first.kind == Kind::kReduce ||
                                   first.kind == Kind::kAllReduce
                               ? bytes
                               : bytes * ranks);
  if (first.kind == Kind::kAllGather) {
    for (size_t r = 0; r < ranks; ++r) {
      std::memcpy(result.data() + r * bytes, View(calls[r].send), bytes);
    }
  } else {
    std::vector<const char*> sources;
    for (const Call& call : calls) sources.push_back(View(call.send));
    CombineBytes(sources, result.data(), result.size() / SizeOf(first.type),
                 first.type, first.op);
  }
  for (size_t r = 0; r < ranks; ++r) {
    const Ranges ranges = RangesOf(calls[r]);
    const size_t from = first.kind == Kind::kReduceScatter ? r * bytes : 0;
    std::memcpy(View(calls[r].receive), result.data() + from, ranges.written);
  }
}

// One call of every rank, in the order of the ranks.
int Run(const std::vector<Call>& calls) {
  for (const Call& call : calls) {
    if (call.kind != calls[0].kind || call.count != calls[0].count ||
        call.type != calls[0].type || call.op != calls[0].op ||
        call.root != calls[0].root) {
      return Fail(kNcclInvalidUsage, "the ranks' calls do not match");
    }
    const Ranges ranges = RangesOf(call);
    if (!Reachable(call.send, ranges.read) ||
        !Reachable(call.receive, ranges.written)) {
      return Fail(kNcclUnhandledCudaError,
                  "a buffer is not mapped on the simulated device");
    }
  }
  const char* name = kNames[static_cast<int>(calls[0].kind)];
  DeviceScope device;
  for (size_t r = 1; r < calls.size(); ++r) {
    if (!Order(calls[r], calls[0])) {
      return Fail(kNcclUnhandledCudaError, "an event failed");
    }
  }
  cudaSetDevice(calls[0].comm->device);
  cudasim_begin_operator(calls[0].stream, name);
  Compute(calls);
  for (const Call& call : calls) {
    const Ranges ranges = RangesOf(call);
    const cudasim_access accesses[2] = {
        {reinterpret_cast<uint64_t>(call.send), ranges.read, 0},
        {reinterpret_cast<uint64_t>(call.receive), ranges.written, 1}};
    cudaSetDevice(call.comm->device);
    cudasim_note_access(call.stream, name, accesses, 2);
  }
  for (size_t r = 1; r < calls.size(); ++r) {
    if (!Order(calls[0], calls[r])) {
      return Fail(kNcclUnhandledCudaError, "an event failed");
    }
  }
  for (size_t r = 1; r < calls.size(); ++r) {
    if (!Order(calls[r], calls[0])) {
      return Fail(kNcclUnhandledCudaError, "an event failed");
    }
  }
  return kNcclSuccess;
}

int Add(const Call& call) {
  if (call.comm == nullptr || SizeOf(call.type) == 0 || call.op < 0 ||
      call.op > 4) {
    return Fail(kNcclInvalidArgument, "a type or an operation is not known");
  }
  if ((call.type == 10 || call.type == 11) &&
      (call.kind == Kind::kReduce || call.kind == Kind::kAllReduce ||
       call.kind == Kind::kReduceScatter)) {
    return Fail(kNcclInvalidArgument, "float8 is moved but not added");
  }
  if (call.root < 0 ||
      call.root >= static_cast<int>(call.comm->clique->size())) {
    return Fail(kNcclInvalidArgument, "the root is no rank");
  }
  if (group_depth == 0 && call.comm->clique->size() == 1) return Run({call});
  if (group_depth == 0) {
    return Fail(kNcclInvalidUsage,
                "a call of several devices must be inside of "
                "ncclGroupStart and ncclGroupEnd");
  }
  group_calls.push_back(call);
  return kNcclSuccess;
}

int RunGroup() {
  std::vector<Call> calls;
  calls.swap(group_calls);
  while (!calls.empty()) {
    // The first call of each rank of the first call's clique.
    const auto clique = calls[0].comm->clique;
    std::vector<Call> round;
    for (ncclComm* comm : *clique) {
      const auto found =
          std::find_if(calls.begin(), calls.end(),
                       [&](const Call& call) { return call.comm == comm; });
      if (found == calls.end()) {
        return Fail(kNcclInvalidUsage, "a rank is missing in a group");
      }
      round.push_back(*found);
      calls.erase(found);
    }
    if (const int result = Run(round); result != kNcclSuccess) return result;
  }
  return kNcclSuccess;
}

}  // namespace

extern "C" {

int ncclGetVersion(int* version) {
  *version = kVersion;
  return kNcclSuccess;
}

const char* ncclGetErrorString(int result) {
  switch (result) {
    case kNcclSuccess:
      return "no error";
    case kNcclUnhandledCudaError:
      return "unhandled cuda error (simulated NCCL)";
    case kNcclInvalidArgument:
      return "invalid argument (simulated NCCL)";
    default:
      return "invalid usage (simulated NCCL)";
  }
}

const char* ncclGetLastError(ncclComm*) { return last_error; }

int ncclCommInitAll(ncclComm** comms, int devices, const int* list) {
  int present = 0;
  cudaGetDeviceCount(&present);
  auto clique = std::make_shared<std::vector<ncclComm*>>();
  for (int rank = 0; rank < devices; ++rank) {
    const int device = list == nullptr ? rank : list[rank];
    if (device < 0 || device >= present) {
      for (ncclComm* comm : *clique) delete comm;
      return Fail(kNcclInvalidArgument, "there is no such device");
    }
    clique->push_back(new ncclComm{rank, device, nullptr});
  }
  for (int rank = 0; rank < devices; ++rank) {
    (*clique)[rank]->clique = clique;
    comms[rank] = (*clique)[rank];
  }
  return kNcclSuccess;
}

int ncclCommDestroy(ncclComm* comm) {
  delete comm;
  return kNcclSuccess;
}
int ncclCommAbort(ncclComm* comm) { return ncclCommDestroy(comm); }
int ncclCommFinalize(ncclComm*) { return kNcclSuccess; }
int ncclCommGetAsyncError(ncclComm*, int* error) {
  *error = kNcclSuccess;
  return kNcclSuccess;
}
int ncclCommCount(const ncclComm* comm, int* count) {
  *count = static_cast<int>(comm->clique->size());
  return kNcclSuccess;
}
int ncclCommUserRank(const ncclComm* comm, int* rank) {
  *rank = comm->rank;
  return kNcclSuccess;
}

int ncclGroupStart() {
  ++group_depth;
  return kNcclSuccess;
}
int ncclGroupEnd() {
  if (group_depth == 0) return Fail(kNcclInvalidUsage, "no group is open");
  return --group_depth == 0 ? RunGroup() : kNcclSuccess;
}

int ncclBroadcast(const void* send, void* receive, size_t count, int type,
                  int root, ncclComm* comm, cudaStream_t stream) {
  return Add(
      {Kind::kBroadcast, send, receive, count, type, 0, root, comm, stream});
}
int ncclBcast(void* buffer, size_t count, int type, int root, ncclComm* comm,
              cudaStream_t stream) {
  return ncclBroadcast(buffer, buffer, count, type, root, comm, stream);
}
int ncclReduce(const void* send, void* receive, size_t count, int type, int op,
               int root, ncclComm* comm, cudaStream_t stream) {
  return Add(
      {Kind::kReduce, send, receive, count, type, op, root, comm, stream});
}
int ncclAllReduce(const void* send, void* receive, size_t count, int type,
                  int op, ncclComm* comm, cudaStream_t stream) {
  return Add(
      {Kind::kAllReduce, send, receive, count, type, op, 0, comm, stream});
}
int ncclReduceScatter(const void* send, void* receive, size_t count, int type,
                      int op, ncclComm* comm, cudaStream_t stream) {
  return Add(
      {Kind::kReduceScatter, send, receive, count, type, op, 0, comm, stream});
}
int ncclAllGather(const void* send, void* receive, size_t count, int type,
                  ncclComm* comm, cudaStream_t stream) {
  return Add(
      {Kind::kAllGather, send, receive, count, type, 0, 0, comm, stream});
}

// Between processes, or of NCCL versions to come.
#define CUDASIM_NCCL_REFUSED(name)                                      \
  int name(...) {                                                       \
    return Fail(kNcclInvalidUsage, #name                                \
                " is not part of the simulated device; "                \
                "several processes communicate with the gloo backend"); \
  }
CUDASIM_NCCL_REFUSED(ncclAlltoAll)
CUDASIM_NCCL_REFUSED(ncclCommDeregister)
CUDASIM_NCCL_REFUSED(ncclCommInitRank)
CUDASIM_NCCL_REFUSED(ncclCommInitRankConfig)
CUDASIM_NCCL_REFUSED(ncclCommInitRankScalable)
CUDASIM_NCCL_REFUSED(ncclCommRegister)
CUDASIM_NCCL_REFUSED(ncclCommShrink)
CUDASIM_NCCL_REFUSED(ncclCommSplit)
CUDASIM_NCCL_REFUSED(ncclCommWindowDeregister)
CUDASIM_NCCL_REFUSED(ncclCommWindowRegister)
CUDASIM_NCCL_REFUSED(ncclDevCommCreate)
CUDASIM_NCCL_REFUSED(ncclDevCommDestroy)
CUDASIM_NCCL_REFUSED(ncclGetUniqueId)
CUDASIM_NCCL_REFUSED(ncclGroupSimulateEnd)
CUDASIM_NCCL_REFUSED(ncclMemAlloc)
CUDASIM_NCCL_REFUSED(ncclMemFree)
CUDASIM_NCCL_REFUSED(ncclRecv)
CUDASIM_NCCL_REFUSED(ncclRedOpCreatePreMulSum)
CUDASIM_NCCL_REFUSED(ncclRedOpDestroy)
CUDASIM_NCCL_REFUSED(ncclSend)
#undef CUDASIM_NCCL_REFUSED

}  // extern "C"
