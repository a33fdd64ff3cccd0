// SPDX-License-Identifier: Apache-2.0
#include "python_shim/torch_bridge/bench/accounts.h"

#include <memory>
#include <utility>

#include "accounting/ledger.h"
#include "allocator/allocator.h"
#include "python_shim/c_api/c_api.h"
#include "python_shim/torch_bridge/base/entry_point.h"
#include "python_shim/torch_bridge/bench/both_allocators.h"
#include "python_shim/torch_bridge/bench/thread_time.h"

namespace stratalloc {
namespace {

constexpr Bytes kBytes = 512;
constexpr DeviceIndex kDevice{0};
constexpr ScopeId kLayer{7};

template <typename T>
T OrThrow(Result<T> result) {
  TORCH_CHECK(result.has_value(), result.error().message);
  return *std::move(result);
}

std::unique_ptr<DeviceAllocator> Make(ChargeAccounts* accounts) {
  std::unique_ptr<DeviceAllocator> made =
      OrThrow(DeviceAllocator::Create(OrThrow(Device::Open(kDevice)), {}));
  made->SetAccounts(accounts);
  return made;
}

// Never destroyed: a ledger and its device end with the process.
Ledger& TheLedger() {
  static auto* const made = new Ledger;
  return *made;
}
DeviceAllocator& Accounted() {
  static auto* const made = Make(&TheLedger()).release();
  return *made;
}
DeviceAllocator& Unaccounted() {
  static auto* const made = Make(nullptr).release();
  return *made;
}

std::uint64_t Charged() {
  std::uint64_t blocks = 0;
  for (const LedgerRow& row : TheLedger().Rows()) {
    blocks += row.blocks_allocated;
  }
  return blocks;
}

template <typename Work>
double Timed(int pairs, const Work& work) {
  const double before = ThreadCpuNanoseconds();
  for (int i = 0; i < pairs; ++i) work();
  return ThreadCpuNanoseconds() - before;
}

}  // namespace
}  // namespace stratalloc

int stratalloc_bench_account_pairs(int accounts, int pairs, double* nanoseconds,
                                   char* message, int bytes) {
  using namespace stratalloc;
  return RunEntryPoint(message, bytes, [&] {
    DeviceAllocator& device = accounts != 0 ? Accounted() : Unaccounted();
    const MallocRequest request{kBytes,
                                kDefaultStream,
                                LifetimeClass::kTransient,
                                {kLayer, Category::kActivation}};
    const std::uint64_t before = Charged();
    *nanoseconds = Timed(pairs, [&] {
      const Address address = OrThrow(device.Malloc(request)).address;
      OrThrow(device.Free(address));
    });
    const std::uint64_t charged = Charged() - before;
    TORCH_CHECK(charged == (accounts != 0 ? static_cast<uint64_t>(pairs) : 0),
                charged, " of ", pairs, " blocks were charged");
  });
}

int stratalloc_bench_scoped_pairs(int inside, int pairs, double* nanoseconds,
                                  char* message, int bytes) {
  using namespace stratalloc;
  return RunEntryPoint(message, bytes, [&] {
    c10::Allocator* const allocator = AllocatorFor(/*native=*/0);
    const auto pair = [&] { const auto data = allocator->allocate(kBytes); };
    const auto scope = static_cast<uint32_t>(Raw(kLayer));
    constexpr int kActivation = static_cast<int>(Category::kActivation);
    constexpr int kTransient = static_cast<int>(LifetimeClass::kTransient);
    *nanoseconds = Timed(pairs, [&] {
      stratalloc_scope_push(scope, kActivation, kTransient);
      if (inside != 0) pair();
      stratalloc_scope_pop();
      if (inside == 0) pair();
    });
  });
}
