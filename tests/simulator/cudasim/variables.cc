// SPDX-License-Identifier: Apache-2.0

#include "tests/simulator/cudasim/variables.h"

#include <algorithm>

#include "tests/simulator/cudasim/simulator.h"

namespace cudasim {
namespace {

constexpr uint64_t kAlignment = 256;  // as cudaMalloc promises
constexpr uint64_t kChunk = uint64_t{2} << 20;

}  // namespace

Variables& Variables::Get() {
  static Variables& variables = *new Variables;
  return variables;
}

void Variables::Register(const void* symbol, const char* name, size_t bytes) {
  std::lock_guard<std::mutex> lock(mu_);
  Variable& variable = variables_[symbol];
  variable.name = name;
  variable.bytes = bytes;
}

Status Variables::SizeOf(const void* symbol, size_t* bytes) {
  std::lock_guard<std::mutex> lock(mu_);
  auto found = variables_.find(symbol);
  if (found == variables_.end()) return kInvalidSymbol;
  *bytes = found->second.bytes;
  return kOk;
}

Status Variables::Locate(const void* symbol, int device, size_t count,
                         size_t offset, Use use, uint64_t* address) {
  std::lock_guard<std::mutex> lock(mu_);
  auto found = variables_.find(symbol);
  if (found == variables_.end()) return kInvalidSymbol;
  Variable& variable = found->second;
  if (offset > variable.bytes || count > variable.bytes - offset) {
    return kInvalidValue;
  }
  Copy& copy = variable.copies[device];
  if (use == Use::kRead && !copy.touched) return kNotSupported;
  if (copy.address == 0) {
    const Status placed = Place(&variable, device, &copy.address);
    if (placed != kOk) return placed;
  }
  copy.touched = true;
  *address = copy.address + offset;
  return kOk;
}

void Variables::RegisterOfModules(const char* name, size_t bytes) {
  std::lock_guard<std::mutex> lock(mu_);
  of_modules_[name] = bytes;
}

Status Variables::LocateOfModule(const void* module, const std::string& name,
                                 int device, uint64_t* address, size_t* bytes) {
  std::lock_guard<std::mutex> lock(mu_);
  auto found = of_modules_.find(name);
  if (found == of_modules_.end()) return kNotFound;
  uint64_t& placed = placed_[{module, name, device}];
  if (placed == 0) {
    const Status status =
        Simulator::Get().addresses.MapForModule(device, found->second, &placed);
    if (status != kOk) return status;
  }
  *address = placed;
  *bytes = found->second;
  return kOk;
}

Status Variables::Place(Variable* variable, int device, uint64_t* address) {
  const uint64_t bytes =
      (std::max<uint64_t>(variable->bytes, 1) + kAlignment - 1) / kAlignment *
      kAlignment;
  Chunk& chunk = chunks_[device];
  if (chunk.end - chunk.next < bytes) {
    Simulator& sim = Simulator::Get();
    const uint64_t size = std::max(bytes, kChunk);
    uint64_t start = 0;
    const Status status = sim.addresses.Malloc(device, size, &start);
    if (status != kOk) return status;
    sim.addresses.FindMapping(start, &start)->extent->of_module = true;
    chunk = {start, start + size};
  }
  *address = chunk.next;
  chunk.next += bytes;
  return kOk;
}

}  // namespace cudasim
