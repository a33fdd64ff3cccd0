// SPDX-License-Identifier: Apache-2.0

#include "tests/simulator/cudasim/pressure.h"

#include <algorithm>
#include <cstdio>
#include <sstream>

#include "tests/simulator/cudasim/config.h"
#include "tests/simulator/cudasim/faults.h"

namespace cudasim {

uint64_t Pressure::Take(DeviceMemory* memory, uint64_t bytes) {
  memory->others = 0;
  memory->others = std::min(bytes, memory->Free());
  return memory->others;
}

void Pressure::PlanTake(int device, uint64_t bytes, ApiFunction* function,
                        long nth) {
  plans_.push_back(Plan{device, bytes, function, function->calls() + nth});
  planned_.store(true);
}

void Pressure::Apply(const ApiFunction& function, Extents* extents) {
  for (auto plan = plans_.begin(); plan != plans_.end();) {
    if (plan->function != &function || function.calls() < plan->call) {
      ++plan;
      continue;
    }
    Take(&extents->memory(plan->device), plan->bytes);
    plan = plans_.erase(plan);
  }
  planned_.store(!plans_.empty());
}

long Pressure::TakeSteps() {
  if (stuck_nth_ == 0 || --stuck_nth_ != 0) return 0;
  return stuck_steps_;
}

bool Pressure::CanPin(uint64_t bytes, const HostMemory& host,
                      const Extents& extents) const {
  const uint64_t pinned = host.pinned_bytes() + extents.host_bytes();
  return pinned <= pinned_limit_ && bytes <= pinned_limit_ - pinned;
}

void Pressure::Clear() {
  plans_.clear();
  planned_.store(false);
  stuck_nth_ = 0;
  pinned_limit_ = std::numeric_limits<uint64_t>::max();
  page_tables_ = 0;
  code_ = 0;
}

std::string Pressure::TakeFromText(const std::string& text, Extents* extents) {
  std::stringstream plans(text);
  std::string plan;
  while (std::getline(plans, plan, ';')) {
    if (plan.empty()) continue;
    char size[32];
    char function[128] = "";
    int device = -1;
    long nth = 0;
    uint64_t bytes = 0;
    const int fields = std::sscanf(plan.c_str(), "%d:%31[^:]:%127[^:]:%ld",
                                   &device, size, function, &nth);
    if ((fields != 2 && fields != 4) || device < 0 ||
        device >= extents->devices() || !ParseBytes(size, &bytes) ||
        (fields == 4 && (nth < 1 || !Faults::Knows(function)))) {
      return "\"" + plan +
             "\" must be device:bytes or device:bytes:function:nth";
    }
    if (fields == 2) {
      Take(&extents->memory(device), bytes);
    } else {
      PlanTake(device, bytes, &ApiFunction::Named(function), nth);
    }
  }
  return "";
}

}  // namespace cudasim
