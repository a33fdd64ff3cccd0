// SPDX-License-Identifier: Apache-2.0
// What an event costs, by part.
#include <benchmark/benchmark.h>

#include "allocator/events/event_recorder.h"

namespace stratalloc {
namespace {

void Off(benchmark::State& state) {
  EventRecorder::Stop();
  for (auto _ : state) {
    benchmark::DoNotOptimize(EventRecorder::on());
  }
}
BENCHMARK(Off);

void Ticks(benchmark::State& state) {
  for (auto _ : state) benchmark::DoNotOptimize(NowTicks());
}
BENCHMARK(Ticks);

void RecordOne(benchmark::State& state) {
  if (!EventRecorder::Start(std::nullopt))
    return state.SkipWithError("no area");
  std::uint64_t number = 0;
  for (auto _ : state) {
    Event event;
    event.address = ++number;
    event.bytes = 512;
    EventRecorder::Record(event);
  }
}
BENCHMARK(RecordOne)->Threads(1)->Threads(2);

}  // namespace
}  // namespace stratalloc

BENCHMARK_MAIN();
