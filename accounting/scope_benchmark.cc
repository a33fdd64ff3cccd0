// SPDX-License-Identifier: Apache-2.0
// What attribution costs on the hot paths. One thread, warm caches; names are
// interned before, as callers do.
#include "accounting/ledger.h"
#include "accounting/scope_stack.h"
#include "benchmark/benchmark.h"

namespace stratalloc {
namespace {

constexpr ScopeFrame kFrame{static_cast<ScopeId>(3), Category::kActivation,
                            LifetimeClass::kTransient};

class Silent : public ScopeListener {
 public:
  void OnEnter(ScopeId) override {}
  void OnLeave(ScopeId) override {}
  void OnBackward(ScopeId) override {}
};

// One push and one pop; nobody listens. Bar: 15 ns.
void BM_PushPop(benchmark::State& state) {
  SetScopeListener(nullptr);
  for (auto _ : state) {
    PushScope(kFrame);
    benchmark::DoNotOptimize(CurrentScope().scope);
    PopScope();
  }
}
BENCHMARK(BM_PushPop);

// The same with a listener that does nothing: two indirect calls more.
void BM_PushPopWithListener(benchmark::State& state) {
  static Silent silent;
  SetScopeListener(&silent);
  for (auto _ : state) {
    PushScope(kFrame);
    benchmark::DoNotOptimize(CurrentScope().scope);
    PopScope();
  }
  SetScopeListener(nullptr);
}
BENCHMARK(BM_PushPopWithListener);

// A charge and its credit in a ledger of 600 rows, uncontended.
void BM_ChargeCredit(benchmark::State& state) {
  Ledger ledger;
  for (std::uint32_t i = 0; i < 600; ++i) {
    ledger.Of(DeviceIndex{0}, {static_cast<ScopeId>(i), Category::kActivation})
        .Allocate(512);
  }
  std::uint32_t scope = 0;
  for (auto _ : state) {
    const Charge charge{static_cast<ScopeId>(scope), Category::kActivation};
    ledger.Of(DeviceIndex{0}, charge).Allocate(512);
    ledger.Of(DeviceIndex{0}, charge).Free(512);
    scope = scope == 599 ? 0 : scope + 1;
  }
}
BENCHMARK(BM_ChargeCredit);

}  // namespace
}  // namespace stratalloc

BENCHMARK_MAIN();
