// SPDX-License-Identifier: Apache-2.0

#include "tests/simulator/cudasim/launches.h"

#include <cxxabi.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>

#include "tests/simulator/cudasim/driver_log.h"
#include "tests/simulator/cudasim/error_text.h"
#include "tests/simulator/cudasim/simulator.h"
#include "tests/simulator/cudasim/spin_twin.h"

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
  static Launches& launches = *[] {
    auto* made = new Launches;
    made->RegisterTwin(kSpinKernel, SpinTwin);
    made->SetParameters(kSpinKernel, {sizeof(int64_t)});
    return made;
  }();
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

const void* Launches::FunctionOfModule(
    uint64_t module, const std::string& name,
    std::optional<std::vector<KernelParameter>> parameters) {
  std::lock_guard<std::mutex> lock(mu_);
  auto& kernel = module_kernels_[{module, name}];
  if (kernel == nullptr) {
    kernel = std::make_unique<ModuleKernel>();
    kernel->name = name;
    kernel->parameters = std::move(parameters);
    names_.emplace(kernel.get(), kernel->name.c_str());
    by_token_.emplace(kernel.get(), kernel.get());
  }
  return kernel.get();
}

const std::vector<KernelParameter>* Launches::ParametersOf(
    const void* function) {
  std::lock_guard<std::mutex> lock(mu_);
  auto found = by_token_.find(function);
  if (found == by_token_.end() || !found->second->parameters) return nullptr;
  return &*found->second->parameters;
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

Status Launches::Record(Capture* capture, Stream* stream, const Call& call) {
  Simulator& sim = Simulator::Get();
  Work work;
  work.kind = NodeKind::kKernel;
  work.name = Demangle(call.name);
  if (call.twin == nullptr && !call.checked) {  // CUDASIM_NOOP_LAUNCH
    sim.captures.Add(capture, stream, std::move(work));
    return kOk;
  }
  work.charge = [&sim](Stream* on) { sim.ChargeKernel(on, 0, 0, 1); };
  if (call.parameters != nullptr) {
    work.accesses =
        AccessesOf(PointerArguments(sim, *call.parameters, call.arguments));
  }
  if (call.checked) {
    // The accesses are checked before it.
    work.run = [](Lock&, Stream*) {};
    sim.captures.Add(capture, stream, std::move(work));
    return kOk;
  }
  struct Kept {
    std::vector<std::vector<char>> values;
    unsigned grid[3];
    unsigned block[3];
  };
  auto kept = std::make_shared<Kept>();
  std::copy_n(call.grid, 3, kept->grid);
  std::copy_n(call.block, 3, kept->block);
  std::vector<size_t> sizes;
  if (!SizesOf(call, &sizes)) {
    std::fprintf(stderr,
                 "cudasim: kernel %s was launched in a capture, and the "
                 "sizes of its parameters are not known "
                 "(cudasim_set_twin_parameters): cudaErrorNotSupported\n",
                 work.name.c_str());
    sim.captures.Invalidate(capture);
    return kNotSupported;
  }
  for (size_t i = 0; i < sizes.size(); ++i) {
    const char* const value = static_cast<const char*>(call.arguments[i]);
    kept->values.emplace_back(value, value + sizes[i]);
  }
  work.run = [kept, twin = call.twin](Lock& lock, Stream* on) {
    std::vector<void*> pointers;
    for (auto& value : kept->values) pointers.push_back(value.data());
    lock.unlock();
    ThreadState& thread = ThisThread();
    Stream* const outer = thread.launching;
    thread.launching = on;
    twin(pointers.data(), kept->grid, kept->block);
    thread.launching = outer;
    lock.lock();
  };
  sim.captures.Add(capture, stream, std::move(work));
  return kOk;
}

bool Launches::SizesOf(const Call& call, std::vector<size_t>* sizes) {
  std::lock_guard<std::mutex> lock(mu_);
  if (const std::vector<size_t>* told = Find(parameters_, call.name)) {
    *sizes = *told;
    return true;
  }
  if (call.parameters == nullptr) return false;
  for (const KernelParameter& each : *call.parameters) {
    sizes->push_back(each.bytes);
  }
  return true;
}

bool Launches::LoadCode(const void* function, int device) {
  std::lock_guard<std::mutex> lock(mu_);
  auto found = by_token_.find(function);
  if (found == by_token_.end()) return true;
  uint32_t& loaded = found->second->loaded;
  const uint32_t bit = uint32_t{1} << device;
  if ((loaded & bit) != 0) return true;
  // Kept outside the books, as all code.
  Simulator& sim = Simulator::Get();
  if (!sim.pressure.HasRoomForCode(sim.extents.memory(device))) return false;
  loaded |= bit;
  return true;
}

void Launches::Choose(Call* call) {
  Simulator& sim = Simulator::Get();
  const std::string readable = Demangle(call->name);
  const bool asked =
      raw_names_.Covers(call->name) || raw_names_.Covers(readable);
  std::string problem = "has no host twin";
  {
    std::lock_guard<std::mutex> lock(mu_);
    if (const cudasim_twin* found = Find(twins_, call->name)) {
      call->twin = *found;
      ++with_twin_;
      return;
    }
    if (asked && call->parameters != nullptr) {
      call->checked = true;
      ++checked_;
      last_checked_ = readable;
      return;
    }
    ++without_twin_;
    last_missing_ = readable;
  }
  if (sim.config.noop_launch) return;
  SetRefusal(readable, call->parameters != nullptr);
  if (asked) {
    problem +=
        ", and no image says its parameters, so its pointers cannot be "
        "checked (raw_launches.h)";
  }
  DriverLog::Get().Error("kernel " + readable + " " + problem);
  if (!sim.violations.verbose()) return;
  std::fprintf(stderr,
               "cudasim: kernel %s was launched and %s: cudaErrorNotSupported "
               "(%s)\n",
               readable.c_str(), problem.c_str(),
               call->parameters != nullptr
                   ? "give it a twin, or check its pointers alone: "
                     "CUDASIM_CHECK_RAW_LAUNCHES"
                   : "the operator that launched it must be bridged, or the "
                     "kernel given a twin");
}

void Launches::SetRefusal(const std::string& kernel, bool is_raw) {
  std::string text = "operation not supported: the simulated device ";
  text += is_raw ? "cannot run compiled kernels (" + kernel +
                       "); here, use torch.compile with backend=\"eager\", "
                       "\"aot_eager\" or \"cudagraphs\"; to measure memory "
                       "alone, set CUDASIM_CHECK_RAW_LAUNCHES=all"
                 : "has no code for " + kernel +
                       "; run the operator that launched it on a GPU";
  std::lock_guard<std::mutex> lock(mu_);
  refusal_ = std::move(text);
}

const char* Launches::ErrorSentence(int error) {
  if (error != kNotSupported || !Simulator::Get().broken.load()) {
    return ErrorText(error);
  }
  thread_local std::string text;
  std::lock_guard<std::mutex> lock(mu_);
  text = refusal_;
  return text.empty() ? ErrorText(error) : text.c_str();
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
  Call call;
  call.name = name;
  call.parameters = ParametersOf(function);
  call.grid = grid;
  call.block = block;
  call.arguments = arguments;
  if (call.parameters != nullptr && !call.parameters->empty() &&
      arguments == nullptr) {
    return kInvalidValue;
  }
  Choose(&call);
  Lock lock(sim.mu);
  Stream* stream = sim.FindStream(stream_handle);
  if (stream == nullptr) return kInvalidHandle;
  // A copy may go to another device's stream, a launch may not.
  if (stream->device != thread.device) return kInvalidHandle;
  if (!LoadCode(function, stream->device)) return kOutOfMemory;
  Capture* capture = nullptr;
  if (const Status status = sim.captures.Enqueue(stream, &capture);
      status != kOk) {
    return status;
  }
  if (call.twin == nullptr && !call.checked) {
    if (sim.config.noop_launch) {
      if (capture != nullptr) return Record(capture, stream, call);
      sim.ChargeKernel(stream, 0, 0, 1);
      return kOk;
    }
    sim.Break(stream->device, kNotSupported);
    return kNotSupported;
  }
  // With numbers off the twin has to know that there are no bytes.
  if (call.twin != nullptr && sim.extents.phantom() && sim.config.numbers) {
    Unsupported(("kernel " + Demangle(name) + " on phantom memory").c_str());
    return kNotSupported;
  }
  if (capture != nullptr) return Record(capture, stream, call);
  if (call.twin != nullptr && sim.async.load()) {
    sim.streams.Execute(lock, VectorClock(sim.streams.Past(stream)));
  }
  if (call.parameters != nullptr) {
    const std::string readable = Demangle(call.name);
    const std::vector<PointerArgument> pointers =
        PointerArguments(sim, *call.parameters, arguments);
    if (!PointersUsable(sim, readable, *stream, pointers, "")) return kOk;
    SubmitPointers(sim, readable, stream, pointers, call.twin != nullptr);
  }
  if (call.checked) {
    sim.ChargeKernel(stream, 0, 0, 1);
    return kOk;
  }
  lock.unlock();
  Stream* const outer = thread.launching;
  thread.launching = stream;
  thread.costed = false;
  call.twin(arguments, grid, block);
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
  SetRefusal(last_missing(), false);
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

long Launches::checked() {
  std::lock_guard<std::mutex> lock(mu_);
  return checked_;
}

std::string Launches::last_checked() {
  std::lock_guard<std::mutex> lock(mu_);
  return last_checked_;
}

void Launches::ResetCounts() {
  std::lock_guard<std::mutex> lock(mu_);
  with_twin_ = 0;
  without_twin_ = 0;
  last_missing_.clear();
  checked_ = 0;
  last_checked_.clear();
}

}  // namespace cudasim
