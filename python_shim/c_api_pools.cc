// SPDX-License-Identifier: Apache-2.0
// C API: private pools.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "python_shim/core.h"

namespace stratalloc {
namespace {

PoolId ToPoolId(stratalloc_pool_id id) { return {id.first, id.second}; }

// Runs `f` on the device's allocator, which is opened for it; its Status is the
// answer.
template <typename F>
int On(int device, stratalloc_error* error, F&& f) {
  Result<DeviceAllocator*> allocator = Core::Get().Device(device);
  if (!allocator) return ToC(allocator.error(), error);
  return ToC(f(**allocator), error);
}

// The same of a pool that must be there: a device that is not opened has none.
template <typename F>
int OnPool(int device, stratalloc_pool_id pool, stratalloc_error* error,
           F&& f) {
  Result<DeviceAllocator*> allocator = Core::Get().Opened(device);
  if (!allocator) return ToC(allocator.error(), error);
  if (*allocator == nullptr) {
    return ToC(
        Error{ErrorCode::kInvalidArgument,
              "no private pool (" + std::to_string(pool.first) + ", " +
                  std::to_string(pool.second) + ") on device " +
                  std::to_string(device) + ", where nothing was allocated yet"},
        error);
  }
  return ToC(f(**allocator), error);
}

}  // namespace
}  // namespace stratalloc

struct stratalloc_checkpoint {
  stratalloc::Checkpoint value;
};

using namespace stratalloc;  // the C face of this namespace

extern "C" {

int stratalloc_pool_use(int device, stratalloc_pool_id pool,
                        stratalloc_error* error) {
  return On(device, error, [&](DeviceAllocator& allocator) -> Status {
    allocator.CreateOrUsePool(ToPoolId(pool));
    return {};
  });
}

int stratalloc_pool_use_source(int device, stratalloc_pool_id pool,
                               void* (*allocate)(void*, uint64_t, uint64_t),
                               void (*release)(void*, void*), void* context,
                               void (*drop)(void*), stratalloc_error* error) {
  const std::shared_ptr<void> owned(context, drop);
  return On(device, error, [&](DeviceAllocator& allocator) -> Status {
    allocator.CreateOrUsePool(
        ToPoolId(pool),
        std::make_shared<const MemorySource>(MemorySource{
            [allocate, owned](Bytes bytes, StreamId stream) -> Result<Address> {
              void* const memory = allocate(owned.get(), bytes, Raw(stream));
              if (memory != nullptr) {
                return reinterpret_cast<Address>(memory);
              }
              return Fail(ErrorCode::kOutOfMemory,
                          "the pool's allocator has none");
            },
            [release, owned](Address address) {
              release(owned.get(), reinterpret_cast<void*>(address));
            }}));
    return {};
  });
}

int stratalloc_pool_begin(int device, stratalloc_pool_id pool,
                          int (*filter)(void*, uint64_t), void* context,
                          void (*drop)(void*), uint64_t current,
                          const stratalloc_access* reads, int count,
                          stratalloc_error* error) {
  const std::shared_ptr<void> owned(context, drop);
  return On(device, error, [&](DeviceAllocator& allocator) {
    const auto accepts = [filter, owned](StreamId stream) {
      return filter(owned.get(), Raw(stream)) != 0;
    };
    Engine* engine = Core::Get().engine();
    if (engine == nullptr) {
      return allocator.BeginAllocateToPool(ToPoolId(pool), accepts,
                                           StreamId{current});
    }
    std::vector<Access> named;
    for (int i = 0; i < count; ++i) {
      named.push_back(
          {reads[i].address, reads[i].bytes, reads[i].written != 0});
    }
    return engine->BeginAllocateToPool(allocator, ToPoolId(pool), accepts,
                                       StreamId{current}, named);
  });
}

int stratalloc_pool_end(int device, stratalloc_pool_id pool,
                        stratalloc_error* error) {
  return OnPool(device, pool, error, [&](DeviceAllocator& allocator) {
    return allocator.EndAllocateToPool(ToPoolId(pool));
  });
}

int stratalloc_pool_release(int device, stratalloc_pool_id pool,
                            stratalloc_error* error) {
  return OnPool(device, pool, error, [&](DeviceAllocator& allocator) {
    return allocator.ReleasePool(ToPoolId(pool));
  });
}

int stratalloc_pool_use_count(int device, stratalloc_pool_id pool) {
  Result<DeviceAllocator*> allocator = Core::Get().Opened(device);
  return allocator && *allocator != nullptr
             ? (*allocator)->PoolUseCount(ToPoolId(pool))
             : 0;
}

int stratalloc_pool_set_use_on_oom(int device, stratalloc_pool_id pool, int on,
                                   stratalloc_error* error) {
  return OnPool(device, pool, error, [&](DeviceAllocator& allocator) {
    return allocator.SetUseOnOom(ToPoolId(pool), on != 0);
  });
}

int stratalloc_pool_set_no_split(int device, stratalloc_pool_id pool,
                                 stratalloc_error* error) {
  return OnPool(device, pool, error, [&](DeviceAllocator& allocator) {
    return allocator.SetNoSplit(ToPoolId(pool));
  });
}

int stratalloc_pool_empty(int device, stratalloc_pool_id pool,
                          stratalloc_error* error) {
  Result<DeviceAllocator*> allocator = Core::Get().Opened(device);
  if (!allocator) return ToC(allocator.error(), error);
  if (*allocator == nullptr) return 0;
  return ToC((*allocator)->EmptyPool(ToPoolId(pool)), error);
}

int stratalloc_pool_blocks(int device, stratalloc_pool_id pool,
                           void (*block)(void*, void*), void* context,
                           stratalloc_error* error) {
  return OnPool(device, pool, error, [&](DeviceAllocator& allocator) -> Status {
    STRATALLOC_ASSIGN_OR_RETURN(const std::vector<Address> addresses,
                                allocator.AllocatedIn(ToPoolId(pool)));
    for (const Address address : addresses) {
      block(context, reinterpret_cast<void*>(address));
    }
    return {};
  });
}

int stratalloc_checkpoint_take(int device, stratalloc_pool_id pool,
                               stratalloc_checkpoint** out,
                               stratalloc_error* error) {
  return OnPool(device, pool, error, [&](DeviceAllocator& allocator) -> Status {
    STRATALLOC_ASSIGN_OR_RETURN(Checkpoint taken,
                                allocator.TakeCheckpoint(ToPoolId(pool)));
    *out = new stratalloc_checkpoint{std::move(taken)};
    return {};
  });
}

void stratalloc_checkpoint_drop(stratalloc_checkpoint* checkpoint) {
  delete checkpoint;
}

int stratalloc_checkpoint_go_back(int device,
                                  const stratalloc_checkpoint* checkpoint,
                                  void (*freed)(void*, void*),
                                  void (*allocated)(void*, void*),
                                  void* context, stratalloc_error* error) {
  return On(device, error, [&](DeviceAllocator& allocator) -> Status {
    STRATALLOC_ASSIGN_OR_RETURN(const CheckpointDelta delta,
                                allocator.GoBackTo(checkpoint->value));
    for (const CheckpointBlock& block : delta.freed) {
      freed(context, reinterpret_cast<void*>(block.address));
    }
    for (const CheckpointBlock& block : delta.allocated) {
      allocated(context, reinterpret_cast<void*>(block.address));
    }
    return {};
  });
}

}  // extern "C"
