// SPDX-License-Identifier: Apache-2.0
#include "python_shim/torch_bridge/testing/recording_core.h"

#include <dlfcn.h>

#include <cstdio>
#include <cstring>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "allocator/base/mutex.h"

uint64_t stratalloc_evictable_lo = 0;
uint64_t stratalloc_evictable_hi = 0;

namespace stratalloc {
namespace {

constexpr int kCopyDeviceToDevice = 3;  // cudaMemcpyDeviceToDevice

// The CUDA functions come from the runtime that torch loaded.
template <typename Function>
Function Runtime(const char* name) {
  static void* const library =
      dlopen("libcudart.so.13", RTLD_NOW | RTLD_NOLOAD);
  return reinterpret_cast<Function>(library ? dlsym(library, name) : nullptr);
}

struct Core {
  Mutex mutex{LockRank::kRegistry};
  std::unordered_map<void*, uint64_t> blocks;
  std::map<std::string, std::vector<stratalloc_access>> operators;
  std::vector<int> hints;
  std::string failing;
  stratalloc_error failure{};
  int failing_mallocs = 0;
  int devices = 0;
  double fraction = 1.0;
  uint64_t allocated = 0;
  int64_t ooms = 0;
  long enters = 0;
  int device = -1;
  int caching = 1;
  long stream_records = 0;
  uint64_t room = 0, most = 0;  // 0: no bound
  uint64_t pins = 0;            // so far: the last one's serial
  std::set<uint64_t> pinned;    // serials
  long unpinned[2] = {0, 0};    // by whether the use was unobserved
  void (*poll)(void) = nullptr;
  int (*free_memory)(void) = nullptr;
};

Core& Get() {
  static auto* const core = new Core;
  return *core;
}

thread_local int open_operators = 0;

uint64_t Sum(const stratalloc_access* accesses, int begin, int end) {
  uint64_t bytes = 0;
  for (int i = begin; i < end; ++i) bytes += accesses[i].bytes;
  return bytes;
}

int Fail(stratalloc_error* error, int code, const char* message) {
  if (error != nullptr) {
    error->code = code;
    std::snprintf(error->message, sizeof error->message, "%s", message);
  }
  return code;
}

}  // namespace
}  // namespace stratalloc

using stratalloc::Core;
using stratalloc::Fail;
using stratalloc::Get;
using stratalloc::kCopyDeviceToDevice;
using stratalloc::MutexLock;
using stratalloc::Runtime;
using stratalloc::Sum;

int stratalloc_init(int device_count, stratalloc_error*) {
  Get().devices = device_count;
  return 0;
}

void stratalloc_use_settings(const stratalloc_settings* settings) {
  Get().free_memory = settings->free_memory;
}

void stratalloc_use_pin_poll(void (*poll)(void), int (*)(void)) {
  Get().poll = poll;
}

int stratalloc_pin_blocks(const char*, int reason,
                          const stratalloc_range* ranges, int count,
                          stratalloc_pin* out, stratalloc_error*) {
  Core& core = Get();
  MutexLock lock(core.mutex);
  for (int i = 0; i < count; ++i) {
    out[i] = {ranges[i].address, ++core.pins, reason};
    core.pinned.insert(out[i].serial);
  }
  return 0;
}

void stratalloc_unpin_blocks(const stratalloc_pin* pins, int count,
                             int unobserved) {
  Core& core = Get();
  MutexLock lock(core.mutex);
  for (int i = 0; i < count; ++i) {
    core.unpinned[unobserved] +=
        static_cast<long>(core.pinned.erase(pins[i].serial));
  }
}

int stratalloc_must_hand_out(uint64_t) { return 0; }
void stratalloc_hand_out(uint64_t) {}
void stratalloc_use_workspaces(int (*)(void (*)(void*, void*), void*)) {}

int stratalloc_initialized(void) { return Get().devices > 0; }

int stratalloc_malloc(int device, uint64_t size, uint64_t, int hint,
                      stratalloc_block* out, stratalloc_error* error) {
  Core& core = Get();
  MutexLock lock(core.mutex);
  void* ptr = nullptr;
  const auto malloc_on_device = Runtime<int (*)(void**, size_t)>("cudaMalloc");
  const uint64_t bytes = (size + 511) / 512 * 512;
  if (core.failing_mallocs > 0 || malloc_on_device(&ptr, bytes) != 0) {
    if (core.failing_mallocs > 0) --core.failing_mallocs;
    ++core.ooms;
    return Fail(error, STRATALLOC_OUT_OF_MEMORY,
                "CUDA out of memory. Tried to allocate what there is not.");
  }
  core.blocks[ptr] = bytes;
  core.allocated += bytes;
  core.hints.push_back(hint);
  *out = {ptr, bytes, core.allocated, core.allocated, device};
  return 0;
}

int stratalloc_free(void* ptr, stratalloc_block* out) {
  Core& core = Get();
  MutexLock lock(core.mutex);
  const auto found = core.blocks.find(ptr);
  if (found == core.blocks.end()) return STRATALLOC_NOT_FOUND;
  core.allocated -= found->second;
  if (out != nullptr) {
    *out = {ptr, found->second, core.allocated, core.allocated, 0};
  }
  core.blocks.erase(found);
  Runtime<int (*)(void*)>("cudaFree")(ptr);
  return 0;
}

int stratalloc_owns(const void* ptr) {
  Core& core = Get();
  MutexLock lock(core.mutex);
  return core.blocks.count(const_cast<void*>(ptr)) != 0;
}

int stratalloc_uncached_malloc(uint64_t size, void** out) {
  return Runtime<int (*)(void**, size_t)>("cudaMalloc")(out, size);
}

int stratalloc_uncached_free(void* ptr) {
  return Runtime<int (*)(void*)>("cudaFree")(ptr);
}

int stratalloc_ipc_share(void*, uint64_t*,
                         void (*)(void*, const void*, uint64_t), void*,
                         stratalloc_error* error) {
  return Fail(error, STRATALLOC_UNSUPPORTED, "nothing is shared here");
}

int stratalloc_ipc_open(int, const void*, uint64_t, void**, uint64_t*,
                        stratalloc_error* error) {
  return Fail(error, STRATALLOC_UNSUPPORTED, "nothing is shared here");
}

int stratalloc_ipc_close(uint64_t, stratalloc_error*) { return 0; }

void stratalloc_external_stream(uint64_t) {}

void stratalloc_lasting_stream(uint64_t) {}

int stratalloc_record_stream(void*, int, uint64_t, stratalloc_error*) {
  ++Get().stream_records;
  return 0;
}

int stratalloc_base_allocation(void* ptr, void** base, uint64_t* bytes,
                               stratalloc_error* error) {
  Core& core = Get();
  MutexLock lock(core.mutex);
  for (const auto& [begin, size] : core.blocks) {
    const auto* first = static_cast<const char*>(begin);
    if (ptr >= first && ptr < first + size) {
      *base = begin;
      *bytes = size;
      return 0;
    }
  }
  return Fail(error, STRATALLOC_NOT_FOUND, "no block holds this pointer");
}

int stratalloc_empty_cache(int, stratalloc_error*) { return 0; }

int stratalloc_cache_info(int, uint64_t* largest, stratalloc_error*) {
  *largest = 12345;
  return 0;
}

double stratalloc_memory_fraction(int) { return Get().fraction; }

int stratalloc_set_memory_fraction(int, double fraction, stratalloc_error*) {
  Get().fraction = fraction;
  return 0;
}

int stratalloc_memory_info(int, uint64_t* free_bytes, uint64_t* total,
                           stratalloc_error*) {
  *free_bytes = 1000;
  *total = 2000;
  return 0;
}

int stratalloc_enable_peer_access(int, int, stratalloc_error*) { return 0; }

int stratalloc_memcpy_async(void* to, int, const void* from, int,
                            uint64_t bytes, uint64_t stream, int) {
  return Runtime<int (*)(void*, const void*, size_t, int, uint64_t)>(
      "cudaMemcpyAsync")(to, from, bytes, kCopyDeviceToDevice, stream);
}

int stratalloc_copy_data(void* to, const void* from, uint64_t bytes) {
  return Runtime<int (*)(void*, const void*, size_t, int)>("cudaMemcpy")(
      to, from, bytes, kCopyDeviceToDevice);
}

void stratalloc_enable_caching(int on) { Get().caching = on; }
int stratalloc_caching_enabled(void) { return Get().caching; }

int stratalloc_stats(int, stratalloc_device_stats* out, stratalloc_error*) {
  Core& core = Get();
  MutexLock lock(core.mutex);
  *out = {};
  // Every field its own number, so that a swapped one shows.
  auto* fields = reinterpret_cast<int64_t*>(out);
  for (size_t i = 0; i < sizeof(*out) / sizeof(int64_t); ++i) {
    fields[i] = static_cast<int64_t>(1000 + i);
  }
  out->allocated_bytes[0].current = static_cast<int64_t>(core.allocated);
  out->num_ooms = core.ooms;
  return 0;
}

int stratalloc_reset_peak_stats(int) { return 0; }
int stratalloc_reset_accumulated_stats(int) { return 0; }

int stratalloc_snapshot(void (*segment)(void*, const stratalloc_segment*),
                        void (*block)(void*, const stratalloc_block_info*),
                        void* context, stratalloc_error*) {
  const stratalloc_segment first{0, 4096, 2048, 100, 512, 1024,
                                 7, 0,    3,    0,   0,   0};
  segment(context, &first);
  const stratalloc_block_info blocks[] = {
      {4096, 512, 100, 1, 1}, {4608, 512, 50, 0, 1}, {5120, 1024, 0, 0, 0}};
  for (const stratalloc_block_info& info : blocks) block(context, &info);
  return 0;
}

int stratalloc_operator_enter(int device, uint64_t, const char* name,
                              const stratalloc_access* accesses, int count,
                              stratalloc_error* error) {
  Core& core = Get();
  MutexLock lock(core.mutex);
  core.operators[name].assign(accesses, accesses + count);
  if (!core.failing.empty() &&
      std::strstr(name, core.failing.c_str()) != nullptr) {
    return Fail(error, core.failure.code, core.failure.message);
  }
  if (core.most > 0 && Sum(accesses, 0, count) > core.most) {
    return Fail(error, STRATALLOC_OUT_OF_MEMORY,
                "CUDA out of memory. More than a test allows.");
  }
  ++core.enters;
  core.device = device;
  ++stratalloc::open_operators;
  return 0;
}

int stratalloc_may_leave(uint64_t address) {
  return address >= stratalloc_evictable_lo &&
         address < stratalloc_evictable_hi;
}

void stratalloc_operator_leave(void) { --stratalloc::open_operators; }
void stratalloc_operator_into_call(void) { --stratalloc::open_operators; }
void stratalloc_call_leave(void) {}

int stratalloc_list_fits(int, const stratalloc_access* accesses, int count,
                         uint64_t results) {
  const uint64_t room = Get().room;
  return room == 0 || Sum(accesses, 0, count) + results <= room;
}

int stratalloc_list_slice(int, const stratalloc_access* accesses,
                          const int* ends, const uint64_t* results,
                          int elements, int first) {
  const int begin = first == 0 ? 0 : ends[first - 1];
  for (int i = first + 1; i < elements; ++i) {
    const uint64_t made =
        std::accumulate(results + first, results + i + 1, uint64_t{0});
    if (Sum(accesses, begin, ends[i]) + made > Get().room) return i - first;
  }
  return elements - first;
}

int stratalloc_list_doubtful(int, const stratalloc_access* accesses,
                             const int* ends, const uint64_t* results,
                             int elements) {
  int widest = -1;
  uint64_t most = Get().room;
  for (int i = 0; i < elements; ++i) {
    const uint64_t bytes =
        Sum(accesses, i == 0 ? 0 : ends[i - 1], ends[i]) + results[i];
    if (bytes > most) {
      most = bytes;
      widest = i;
    }
  }
  return widest;
}

void stratalloc_history_hooks(int64_t (*)(void), void (*)(void*)) {}
void stratalloc_history_configure(const stratalloc_history_options*) {}
void stratalloc_history_track(void (*)(const stratalloc_trace_event*)) {}
void stratalloc_history_context(void*) {}
void stratalloc_history_events(int,
                               void (*)(void*, const stratalloc_trace_event*),
                               void*) {}
uint64_t stratalloc_history_out_of_memory(int, uint64_t, uint64_t size,
                                          uint64_t) {
  return size;
}
void stratalloc_history_snapshot(int, uint64_t, uint64_t, uint64_t) {}
void stratalloc_push_compile_context(const char*) {}
void stratalloc_pop_compile_context(void) {}
static thread_local std::string user_metadata;
void stratalloc_set_user_metadata(const char* text) { user_metadata = text; }
const char* stratalloc_user_metadata(void) { return user_metadata.c_str(); }

void recording_set_evictable(uint64_t lo, uint64_t hi) {
  stratalloc_evictable_lo = lo;
  stratalloc_evictable_hi = hi;
}

void recording_fail_operator(const char* part, int code, const char* message) {
  Core& core = Get();
  MutexLock lock(core.mutex);
  core.failing = part;
  Fail(&core.failure, code, message);
}

void recording_set_room(uint64_t room, uint64_t most) {
  Get().room = room;
  Get().most = most;
}

void recording_fail_mallocs(int count) { Get().failing_mallocs = count; }

long recording_enters(void) { return Get().enters; }
int recording_device(void) { return Get().device; }
int recording_open(void) { return stratalloc::open_operators; }

int recording_access(const char* part, int i, uint64_t out[4]) {
  Core& core = Get();
  MutexLock lock(core.mutex);
  for (const auto& [name, accesses] : core.operators) {
    if (name.find(part) == std::string::npos) continue;
    if (static_cast<size_t>(i) >= accesses.size()) return 0;
    const stratalloc_access& access = accesses[static_cast<size_t>(i)];
    out[0] = access.address;
    out[1] = access.bytes;
    out[2] = static_cast<uint64_t>(access.written);
    out[3] = accesses.size();
    return 1;
  }
  return 0;
}

int recording_hint(int i) {
  Core& core = Get();
  MutexLock lock(core.mutex);
  return static_cast<size_t>(i) < core.hints.size()
             ? core.hints[static_cast<size_t>(i)]
             : -1;
}

void recording_clear(void) {
  Core& core = Get();
  MutexLock lock(core.mutex);
  core.operators.clear();
  core.hints.clear();
}

long recording_pinned(void) {
  Core& core = Get();
  MutexLock lock(core.mutex);
  return static_cast<long>(core.pinned.size());
}

long recording_unpinned(int unobserved) {
  Core& core = Get();
  MutexLock lock(core.mutex);
  return core.unpinned[unobserved];
}

void recording_poll(void) {
  if (Get().poll != nullptr) Get().poll();
}

int recording_free_memory(void) { return Get().free_memory(); }

long recording_stream_records(void) { return Get().stream_records; }
