// SPDX-License-Identifier: Apache-2.0

#include "tests/cudasim/launches.h"

#include <cxxabi.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>

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

void Launches::SetParameters(const std::string& name,
                             std::vector<size_t> sizes) {
  std::lock_guard<std::mutex> lock(mu_);
  parameters_[name] = std::move(sizes);
}

template <typename Value>
const Value* Launches::Find(
    const std::unordered_map<std::string, Value>& entries,
    const std::string& name) const {
  if (entries.empty()) return nullptr;
  auto found = entries.find(name);
  if (found != entries.end()) return &found->second;
  const std::string readable = Demangle(name);
  found = entries.find(readable);
  if (found == entries.end()) found = entries.find(WithoutParameters(readable));
  return found == entries.end() ? nullptr : &found->second;
}

Status Launches::Record(Capture* capture, Stream* stream,
                        const std::string& name, cudasim_twin twin,
                        const unsigned grid[3], const unsigned block[3],
                        void** arguments) {
  Simulator& sim = Simulator::Get();
  Work work;
  work.kind = NodeKind::kKernel;
  work.name = Demangle(name);
  if (twin != nullptr) {
    struct Call {
      std::vector<std::vector<char>> values;
      unsigned grid[3];
      unsigned block[3];
    };
    auto call = std::make_shared<Call>();
    std::copy_n(grid, 3, call->grid);
    std::copy_n(block, 3, call->block);
    {
      std::lock_guard<std::mutex> lock(mu_);
      const std::vector<size_t>* sizes = Find(parameters_, name);
      if (sizes == nullptr) {
        std::fprintf(stderr,
                     "cudasim: kernel %s was launched in a capture, and the "
                     "sizes of its parameters are not known "
                     "(cudasim_set_twin_parameters): cudaErrorNotSupported\n",
                     work.name.c_str());
        sim.captures.Invalidate(capture);
        return kNotSupported;
      }
      for (size_t i = 0; i < sizes->size(); ++i) {
        const char* const value = static_cast<const char*>(arguments[i]);
        call->values.emplace_back(value, value + (*sizes)[i]);
      }
    }
    work.charge = [&sim](Stream* on) { sim.ChargeKernel(on, 0, 0, 1); };
    work.run = [call, twin](Lock& lock, Stream* on) {
      std::vector<void*> pointers;
      for (auto& value : call->values) pointers.push_back(value.data());
      lock.unlock();
      ThreadState& thread = ThisThread();
      Stream* const outer = thread.launching;
      thread.launching = on;
      twin(pointers.data(), call->grid, call->block);
      thread.launching = outer;
      lock.lock();
    };
  }
  sim.captures.Add(capture, stream, std::move(work));
  return kOk;
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
    const cudasim_twin* found = Find(twins_, name);
    if (found != nullptr) twin = *found;
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
  Capture* capture = nullptr;
  if (const Status status = sim.captures.Enqueue(stream, &capture);
      status != kOk) {
    return status;
  }
  if (twin == nullptr) {
    if (sim.config.noop_launch) {
      if (capture != nullptr) {
        return Record(capture, stream, name, nullptr, grid, block, nullptr);
      }
      sim.ChargeKernel(stream, 0, 0, 1);
      return kOk;
    }
    sim.Break(stream->device, kNotSupported);
    return kNotSupported;
  }
  // With numbers off the twin has to know that there are no bytes.
  if (sim.extents.phantom() && sim.config.numbers) {
    Unsupported(("kernel " + Demangle(name) + " on phantom memory").c_str());
    return kNotSupported;
  }
  if (capture != nullptr) {
    return Record(capture, stream, name, twin, grid, block, arguments);
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
