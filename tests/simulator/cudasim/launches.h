// SPDX-License-Identifier: Apache-2.0
//
// launches.h: kernels. A launch runs the kernel's host twin if one was
// registered under its name; otherwise it fails by name with
// cudaErrorNotSupported and the device stays broken, because a launch that
// silently did nothing would leave wrong numbers behind. With
// CUDASIM_NOOP_LAUNCH=1 it does nothing, is counted, and the run says so.
//
// A twin runs when the kernel is launched, with its stream's queue executed
// before it; the accesses it notes stay pending like a bridged operator's.
//
// The pointers among the arguments of a module's kernel are checked before its
// twin runs (raw_launches.h). Those of a kernel without a twin are, too, if the
// program asked for that; then nothing else happens, and the launch is counted.
//
// In a capture a launch becomes a node that keeps a copy of the arguments; the
// twin runs, and pointers are checked, when the graph does.
//
// Thread-safety: a lock of its own; twins run without any lock.

#ifndef STRATALLOC_TESTS_SIMULATOR_CUDASIM_LAUNCHES_H_
#define STRATALLOC_TESTS_SIMULATOR_CUDASIM_LAUNCHES_H_

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tests/simulator/cudasim/control.h"
#include "tests/simulator/cudasim/kernel_image.h"
#include "tests/simulator/cudasim/raw_launches.h"
#include "tests/simulator/cudasim/status.h"

namespace cudasim {

struct Capture;
struct Stream;

class Launches {
 public:
  static Launches& Get();

  // A kernel of the program: the host's stub address and its mangled name,
  // which must stay valid (it is a literal of the registering library).
  void RegisterFunction(const void* function, const char* name);
  // nullptr if no such kernel is known.
  const char* NameOf(const void* function);

  // A kernel of a module: a token that stays valid for the process's life.
  // `parameters`: none if its image did not tell them.
  const void* FunctionOfModule(
      uint64_t module, const std::string& name,
      std::optional<std::vector<KernelParameter>> parameters);
  // nullptr unless it is a module's kernel whose image told them.
  const std::vector<KernelParameter>* ParametersOf(const void* function);

  void RegisterTwin(const std::string& name, cudasim_twin twin);
  // The sizes of a kernel's parameters, by any of its names. Nothing else
  // tells them, and a capture has to keep the arguments.
  void SetParameters(const std::string& name, std::vector<size_t> sizes);

  // kInvalidDeviceFunction, kInvalidHandle (stream), kNotSupported (no twin).
  // kOk for pointers that may not be used: as on a device, the next call says
  // kIllegalAddress.
  Status Launch(const void* function, const unsigned grid[3],
                const unsigned block[3], void** arguments, uint64_t stream);

  // A kernel was launched through `function`, which only refuses: counts as one
  // without a twin, and the device stays broken.
  void CountRefused(const char* function);

  RawLaunchNames& raw_names() { return raw_names_; }

  // The sentence of an error. Of kNotSupported on a device that a launch broke:
  // which kernel, and what to do. Valid until the calling thread's next call.
  const char* ErrorSentence(int error);

  long with_twin();
  long without_twin();
  std::string last_missing();
  // Launches that only checked their pointers.
  long checked();
  std::string last_checked();
  void ResetCounts();

 private:
  // The entry under the mangled, the demangled or the shortened name.
  template <typename Value>
  const Value* Find(const std::unordered_map<std::string, Value>& entries,
                    const std::string& name) const;
  // One launch, on its way.
  struct Call {
    std::string name;  // mangled
    cudasim_twin twin = nullptr;
    bool checked = false;  // it has no twin, and its pointers are looked at
    // nullptr: not known.
    const std::vector<KernelParameter>* parameters = nullptr;
    const unsigned* grid = nullptr;
    const unsigned* block = nullptr;
    void** arguments = nullptr;
  };
  // Of its parameters. False if nothing tells them.
  bool SizesOf(const Call& call, std::vector<size_t>* sizes);
  // A module's code is loaded when it is first launched on a device (lazy
  // loading). False: there is no memory for it. REQUIRES: Simulator::mu.
  bool LoadCode(const void* function, int device);
  // What is to be done with it, counted.
  void Choose(Call* call);
  // is_raw: of a module that a program loaded, as those of Triton.
  void SetRefusal(const std::string& kernel, bool is_raw);
  // The launch as a node, with its arguments.
  Status Record(Capture* capture, Stream* stream, const Call& call);

  std::mutex mu_;
  // Registered by library constructors, tens of thousands of them: indexed
  // only when the first question comes.
  std::vector<std::pair<const void*, const char*>> fresh_;
  std::unordered_map<const void*, const char*> names_;
  struct ModuleKernel {
    std::string name;
    std::optional<std::vector<KernelParameter>> parameters;
    uint32_t loaded = 0;  // a bit per device
  };
  // By module and name; the token is the entry's address.
  std::map<std::pair<uint64_t, std::string>, std::unique_ptr<ModuleKernel>>
      module_kernels_;
  std::unordered_map<const void*, ModuleKernel*> by_token_;
  std::unordered_map<std::string, cudasim_twin> twins_;
  std::unordered_map<std::string, std::vector<size_t>> parameters_;
  long with_twin_ = 0;
  long without_twin_ = 0;
  std::string last_missing_;
  std::string refusal_;  // of the last launch that broke a device
  long checked_ = 0;
  std::string last_checked_;
  RawLaunchNames raw_names_;
};

// The readable form of a mangled name, or the name itself.
std::string Demangle(const std::string& name);

}  // namespace cudasim

#endif  // STRATALLOC_TESTS_SIMULATOR_CUDASIM_LAUNCHES_H_
