// SPDX-License-Identifier: Apache-2.0

#include "tests/cudasim/launches.h"

#include <cxxabi.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tests/cudasim/driver_log.h"
#include "tests/cudasim/simulator.h"

namespace cudasim {

std::string Demangle(const std::string& name) {
  int failed = 0;
  char* text = abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &failed);
  if (failed != 0 || text == nullptr) return name;
  std::string result = text;
  std::free(text);
  return result;
}

namespace {

// "void ns::Kernel<float>(int*)" -> "ns::Kernel<float>"
std::string WithoutParameters(std::string name) {
  // The first parenthesis outside template arguments opens the parameters,
  // unless it is "(anonymous namespace)".
  int depth = 0;
  for (size_t i = 0; i < name.size(); ++i) {
    if (name[i] == '<') ++depth;
    if (name[i] == '>') --depth;
    if (name[i] != '(' || depth != 0) continue;
    if (name.compare(i, 21, "(anonymous namespace)") == 0) {
      i += 20;
      continue;
    }
    name.resize(i);
    break;
  }
  if (name.rfind("void ", 0) == 0) name.erase(0, 5);
  return name;
}

}  // namespace

Launches& Launches::Get() {
  static Launches& launches = *new Launches;
  return launches;
}

void Launches::RegisterFunction(const void* function, const char* name) {
  std::lock_guard<std::mutex> lock(mu_);
  fresh_.emplace_back(function, name);
}

const char* Launches::NameOf(const void* function) {
  std::lock_guard<std::mutex> lock(mu_);
  for (const auto& each : fresh_) names_.insert(each);
  fresh_.clear();
  auto found = names_.find(function);
  return found == names_.end() ? nullptr : found->second;
}

const void* Launches::FunctionOfModule(const std::string& name) {
  std::lock_guard<std::mutex> lock(mu_);
  const char*& text = module_names_[name];
  if (text == nullptr) {
    text = strdup(name.c_str());
    names_.emplace(text, text);  // the text's address is the token
  }
  return text;
}

void Launches::RegisterTwin(const std::string& name, cudasim_twin twin) {
  std::lock_guard<std::mutex> lock(mu_);
  twins_[name] = twin;
}

cudasim_twin Launches::FindTwin(const std::string& name) {
  if (twins_.empty()) return nullptr;
  auto found = twins_.find(name);
  if (found != twins_.end()) return found->second;
  const std::string readable = Demangle(name);
  found = twins_.find(readable);
  if (found == twins_.end()) found = twins_.find(WithoutParameters(readable));
  return found == twins_.end() ? nullptr : found->second;
}

Status Launches::Launch(const void* function, const unsigned grid[3],
                        const unsigned block[3], void** arguments,
                        uint64_t stream_handle) {
  const char* name = NameOf(function);
  if (name == nullptr) return kInvalidDeviceFunction;
  Simulator& sim = Simulator::Get();
  const uint64_t threads = uint64_t{block[0]} * block[1] * block[2];
  if (grid[0] == 0 || grid[1] == 0 || grid[2] == 0 || threads == 0 ||
      threads > 1024 || grid[1] > 65535 || grid[2] > 65535) {
    return kInvalidValue;
  }
  ThreadState& thread = ThisThread();
  cudasim_twin twin = nullptr;
  {
    std::lock_guard<std::mutex> lock(mu_);
    twin = FindTwin(name);
    if (twin == nullptr) {
      ++without_twin_;
      last_missing_ = Demangle(name);
      if (!sim.config.noop_launch && sim.violations.verbose()) {
        std::fprintf(stderr,
                     "cudasim: kernel %s was launched and has no host twin: "
                     "cudaErrorNotSupported (the operator that launched it "
                     "must be bridged, or the kernel given a twin)\n",
                     last_missing_.c_str());
      }
    } else {
      ++with_twin_;
    }
  }
  if (twin == nullptr && !sim.config.noop_launch) {
    DriverLog::Get().Error("kernel " + Demangle(name) + " has no host twin");
  }
  Lock lock(sim.mu);
  Stream* stream = sim.streams.Find(stream_handle, thread.device);
  if (stream == nullptr) return kInvalidHandle;
  if (twin == nullptr) {
    if (sim.config.noop_launch) {
      sim.ChargeKernel(stream, 0, 0, 1);
      return kOk;
    }
    sim.Break(stream->device, kNotSupported);
    return kNotSupported;
  }
  if (sim.async.load()) {
    sim.streams.Execute(lock, VectorClock(sim.streams.Past(stream)));
  }
  lock.unlock();
  Stream* const outer = thread.launching;
  thread.launching = stream;
  thread.costed = false;
  twin(arguments, grid, block);
  thread.launching = outer;
  if (!thread.costed) {
    lock.lock();
    sim.ChargeKernel(stream, 0, 0, 1);
  }
  return kOk;
}

void Launches::CountRefused(const char* function) {
  {
    std::lock_guard<std::mutex> lock(mu_);
    ++without_twin_;
    last_missing_ = std::string("a kernel of ") + function;
  }
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  sim.Break(ThisThread().device, kNotSupported);
}

long Launches::with_twin() {
  std::lock_guard<std::mutex> lock(mu_);
  return with_twin_;
}

long Launches::without_twin() {
  std::lock_guard<std::mutex> lock(mu_);
  return without_twin_;
}

std::string Launches::last_missing() {
  std::lock_guard<std::mutex> lock(mu_);
  return last_missing_;
}

void Launches::ResetCounts() {
  std::lock_guard<std::mutex> lock(mu_);
  with_twin_ = 0;
  without_twin_ = 0;
  last_missing_.clear();
}

}  // namespace cudasim
