// SPDX-License-Identifier: Apache-2.0

#include "tests/simulator/cudasim/faults.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <sstream>
#include <string>

#include "tests/simulator/cudasim/driver_entry.h"

namespace cudasim {
namespace {

struct Table {
  std::mutex mu;
  std::map<std::string, ApiFunction*> functions;
};

Table& Functions() {
  static Table& table = *new Table;  // outlives every exit handler
  return table;
}

}  // namespace

bool BreaksDevice(Status status) {
  switch (static_cast<int>(status)) {
    case 214:  // uncorrectable ECC error
    case 220:  // uncorrectable NVLink error
    case 226:  // contained
    case 700:  // illegal address
    case 702:  // launch timeout
    case 710:  // assert
    case 714:  // hardware stack
    case 715:  // illegal instruction
    case 716:  // misaligned address
    case 717:  // invalid address space
    case 718:  // invalid program counter
    case 719:  // launch failure
    case 721:  // tensor memory leak
    case 911:  // external device
      return true;
    default:
      return false;
  }
}

bool ApiFunction::IsOfVirtualMemory(const std::string& name) {
  static constexpr const char* kPrefixes[] = {
      "cuMemAddress",       "cuMemCreate",          "cuMemRelease",
      "cuMemMap",           "cuMemUnmap",           "cuMemSetAccess",
      "cuMemGetAccess",     "cuMemGetAllocation",   "cuMemRetainAllocation",
      "cuMemExportToShare", "cuMemImportFromShare",
  };
  return std::any_of(
      std::begin(kPrefixes), std::end(kPrefixes),
      [&](const char* prefix) { return name.rfind(prefix, 0) == 0; });
}

ApiFunction& ApiFunction::Named(const char* name) {
  Table& table = Functions();
  std::lock_guard<std::mutex> lock(table.mu);
  ApiFunction*& function = table.functions[name];
  if (function == nullptr) function = new ApiFunction(name);
  return *function;
}

Status ApiFunction::Planned(long call) {
  long planned = fail_at_.load(std::memory_order_acquire);
  if (const long every = every_.load(std::memory_order_relaxed); every != 0) {
    return planned != 0 && call >= planned && (call - planned) % every == 0
               ? static_cast<Status>(error_.load(std::memory_order_relaxed))
               : kOk;
  }
  const int error = error_.load(std::memory_order_relaxed);
  if (call != planned || !fail_at_.compare_exchange_strong(planned, 0)) {
    return kOk;
  }
  return static_cast<Status>(error);
}

namespace {

// The runtime is another library, which may not be loaded yet.
bool IsRuntimeFunction(const std::string& name) {
  static const auto& names = *new std::set<std::string>{
#define CUDASIM_UNSUPPORTED(name) #name,
#define CUDASIM_FUNCTION(name) #name,
#include "tests/simulator/cudasim/runtime_functions.inc"
#include "tests/simulator/cudasim/runtime_unsupported.inc"
#undef CUDASIM_FUNCTION
#undef CUDASIM_UNSUPPORTED
  };
  return names.count(name) != 0;
}

}  // namespace

bool Faults::Knows(const char* name) {
  return FindDriverFunction(name) != nullptr || IsRuntimeFunction(name);
}

void Faults::Plan(const char* name, long nth, int error, long every) {
  ApiFunction& function = ApiFunction::Named(name);
  function.fail_at_.store(0, std::memory_order_release);
  function.error_.store(error, std::memory_order_relaxed);
  function.every_.store(every, std::memory_order_relaxed);
  if (nth > 0) {
    function.fail_at_.store(function.calls() + nth, std::memory_order_release);
  }
}

void Faults::Clear() {
  Table& table = Functions();
  std::lock_guard<std::mutex> lock(table.mu);
  for (auto& [name, function] : table.functions) function->fail_at_.store(0);
}

long Faults::Calls(const char* name) {
  Table& table = Functions();
  std::lock_guard<std::mutex> lock(table.mu);
  if (name == nullptr) {
    long all = 0;
    for (auto& [known, function] : table.functions) all += function->calls();
    return all;
  }
  auto found = table.functions.find(name);
  return found == table.functions.end() ? 0 : found->second->calls();
}

void Faults::ResetCounts() {
  Table& table = Functions();
  std::lock_guard<std::mutex> lock(table.mu);
  for (auto& [name, function] : table.functions) function->calls_.store(0);
}

void Faults::PlanFromText(const std::string& text) {
  std::stringstream plans(text);
  std::string plan;
  while (std::getline(plans, plan, ';')) {
    if (plan.empty()) continue;
    char function[128];
    char tail[16] = "";
    long nth = 0;
    int error = 0;
    long every = 0;
    const int fields = std::sscanf(plan.c_str(), "%127[^:]:%ld:%d:%15[^:]:%ld",
                                   function, &nth, &error, tail, &every);
    const std::string end = tail;
    if (fields == 4 && end == "forever") every = 1;
    if (fields < 3 || nth < 1 || error < 1 || every < 0 ||
        (fields > 3 && every == 0) || (fields == 5 && end != "every")) {
      std::fprintf(stderr,
                   "cudasim: CUDASIM_FAIL: \"%s\" cannot be used: it must be "
                   "function:nth:error, function:nth:error:forever or "
                   "function:nth:error:every:n\n",
                   plan.c_str());
      std::_Exit(2);
    }
    if (!Knows(function)) {
      std::fprintf(stderr,
                   "cudasim: CUDASIM_FAIL cannot be used: the simulated device "
                   "has no %s\n",
                   function);
      std::_Exit(2);
    }
    Plan(function, nth, error, every);
  }
}

}  // namespace cudasim
