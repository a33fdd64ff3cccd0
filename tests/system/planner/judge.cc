// SPDX-License-Identifier: Apache-2.0
// Runs policies on a trace from stdin.
//
//     judge POLICY,... CAPACITY,... REPEATED MEASURED < TRACE
//     judge schedule CAPACITY WINDOW < TRACE
//
// Capacities are in pages. The last cycle comes REPEATED more times, so that
// the optimum does not see an end of the program; the MEASURED cycles before
// these are counted. Prints a JSON array, an object for each run. The second
// form prints the schedule of the last cycle: the numbers of the uses after
// which a page leaves, frees counted as uses.
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <sstream>

#include "tests/system/planner/policy.h"
#include "tiering/policy/schedule.h"

namespace stratalloc::planner {
namespace {

constexpr Bytes kPage = 2 * kMiB;

std::vector<Event> LastCycle(const Trace& trace) {
  std::size_t begin = 0, cycles = 0;
  for (std::size_t i = 0; i < trace.events.size(); ++i) {
    if (trace.events[i].kind != 'c') continue;
    if (++cycles + 1 == trace.cycles) begin = i + 1;
  }
  return {trace.events.begin() + static_cast<std::ptrdiff_t>(begin),
          trace.events.end()};
}

void RepeatLastCycle(Trace& trace, std::size_t times) {
  const std::vector<Event> last = LastCycle(trace);
  for (std::size_t i = 0; i < times; ++i) {
    trace.events.insert(trace.events.end(), last.begin(), last.end());
  }
}

struct Counted {
  std::uint64_t in = 0, out = 0, overflows = 0;
};

void Bring(Device& device, Policy& policy, const PageAccess& access) {
  if (device.IsResident(access.page)) return;
  if (device.IsFull()) {
    const PageNumber victim = policy.Victim();
    if (victim != Policy::kNone) device.Evict(victim);
  }
  device.Bring(access.page, access.kind == 'n');
}

// Pages per cycle in cycles [from, to).
Counted Run(const Trace& trace, std::string_view name, std::size_t capacity,
            std::size_t from, std::size_t to) {
  Device device(trace.pages, capacity);
  const std::unique_ptr<Policy> policy = MakePolicy(name, device, trace);
  Counted before;
  std::size_t cycle = 0;
  auto counted = [&] {
    return Counted{device.copied_in, device.copied_out, device.overflows};
  };
  for (const Event& event : trace.events) {
    switch (event.kind) {
      case 'o':
        device.BeginOperator(event);
        for (const PageAccess& access : event.pages) {
          Bring(device, *policy, access);
        }
        for (const PageAccess& access : event.pages) {
          if (access.kind != 'r') device.Write(access.page);
        }
        policy->Used(event);
        break;
      case 'f':
        for (const PageAccess& access : event.pages) device.Free(access.page);
        policy->Freed(event);
        break;
      case 's':
        policy->Scope(event.value);
        break;
      default:
        if (++cycle == from) before = counted();
        if (cycle == to) {
          const Counted after = counted();
          return {after.in - before.in, after.out - before.out,
                  after.overflows - before.overflows};
        }
    }
  }
  return {};
}

std::vector<std::string> Split(const char* text) {
  std::vector<std::string> parts;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, ',');) parts.push_back(part);
  return parts;
}

int PrintSchedule(char** arguments) {
  std::vector<CycleUse> cycle;
  for (const Event& event : LastCycle(ReadTrace(std::cin))) {
    for (const PageAccess& access : event.pages) {
      cycle.push_back(
          {access.page * kPage, kPage, access.kind != 'r', event.kind == 'f'});
    }
  }
  const Schedule schedule =
      MakeSchedule(cycle, {.capacity = std::stoul(arguments[2]) * kPage,
                           .window = std::stoul(arguments[3]) * kPage});
  const char* separator = "[";
  for (std::size_t i = 0; i < cycle.size(); ++i) {
    if (schedule.leaves[i] == 0) continue;
    std::printf("%s%zu", separator, i);
    separator = ",";
  }
  std::puts(*separator == '[' ? "[]" : "]");
  return 0;
}

int Main(char** arguments) {
  Trace trace = ReadTrace(std::cin);
  const std::size_t cycles = trace.cycles;
  const std::size_t measured = std::strtoul(arguments[4], nullptr, 10);
  RepeatLastCycle(trace, std::strtoul(arguments[3], nullptr, 10));
  const char* separator = "[";
  for (const std::string& capacity : Split(arguments[2])) {
    for (const std::string& policy : Split(arguments[1])) {
      const Counted counted =
          Run(trace, policy, std::stoul(capacity), cycles - measured, cycles);
      std::printf(
          "%s{\"trace\": \"%s\", \"policy\": \"%s\", \"capacity\": %s, "
          "\"in\": %.2f, \"out\": %.2f, \"overflows\": %llu}",
          separator, trace.name.c_str(), policy.c_str(), capacity.c_str(),
          static_cast<double>(counted.in) / static_cast<double>(measured),
          static_cast<double>(counted.out) / static_cast<double>(measured),
          static_cast<unsigned long long>(counted.overflows));
      separator = ",\n ";
    }
  }
  std::puts("]");
  return 0;
}

}  // namespace
}  // namespace stratalloc::planner

int main(int count, char** arguments) {
  if (count == 4 && std::string_view(arguments[1]) == "schedule") {
    return stratalloc::planner::PrintSchedule(arguments);
  }
  if (count != 5) {
    std::fputs("usage: judge POLICIES CAPACITIES REPEATED MEASURED\n", stderr);
    return 2;
  }
  return stratalloc::planner::Main(arguments);
}
