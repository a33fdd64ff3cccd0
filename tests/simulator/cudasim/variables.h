// SPDX-License-Identifier: Apache-2.0
//
// variables.h: variables of device code (`__device__ int x;`), which programs
// register by the address of a host stand-in and reach with
// cudaGetSymbolAddress and cudaMemcpyToSymbol. Each device has its own copy, in
// memory of the device that is taken when the first variable is asked for and
// kept to the end of the process, as a real module's is: it counts against the
// capacity, but is no leak and cannot be freed.
//
// The initial value lies in the program's device code, which is never looked
// at. So a variable can be read only after it was written or its address taken;
// before, the read is refused by name.
//
// A variable of a module that the program loads itself (cuModuleGetGlobal) is
// known by its name and size alone, from whoever has a twin of the module's
// kernels. It begins as zeros, and lies where the module's code does, outside
// the books: it takes nothing of the capacity.
//
// Thread-safety: REQUIRES the simulator's lock, except Register.

#ifndef STRATALLOC_TESTS_SIMULATOR_CUDASIM_VARIABLES_H_
#define STRATALLOC_TESTS_SIMULATOR_CUDASIM_VARIABLES_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <tuple>
#include <unordered_map>

#include "tests/simulator/cudasim/status.h"

namespace cudasim {

class Variables {
 public:
  static Variables& Get();

  // `name` is copied. From library constructors, before any other call.
  void Register(const void* symbol, const char* name, size_t bytes);

  // kInvalidSymbol if nothing was registered there.
  Status SizeOf(const void* symbol, size_t* bytes);

  // Every module has a variable of this name.
  void RegisterOfModules(const char* name, size_t bytes);
  // The module's own, on the device. kNotFound; kOutOfMemory.
  Status LocateOfModule(const void* module, const std::string& name, int device,
                        uint64_t* address, size_t* bytes);

  // Where [offset, +count) of the device's copy is. kInvalidSymbol;
  // kInvalidValue outside the variable; kOutOfMemory; for a read of what was
  // never written, kNotSupported.
  enum class Use { kAddress, kWrite, kRead };
  Status Locate(const void* symbol, int device, size_t count, size_t offset,
                Use use, uint64_t* address);

 private:
  struct Copy {
    uint64_t address = 0;
    bool touched = false;
  };
  struct Variable {
    std::string name;
    size_t bytes = 0;
    std::map<int, Copy> copies;  // by device
  };
  struct Chunk {
    uint64_t next = 0;
    uint64_t end = 0;
  };

  Status Place(Variable* variable, int device, uint64_t* address);

  std::mutex mu_;
  std::unordered_map<const void*, Variable> variables_;
  std::map<int, Chunk> chunks_;  // by device
  std::map<std::string, size_t> of_modules_;
  std::map<std::tuple<const void*, std::string, int>, uint64_t> placed_;
};

}  // namespace cudasim

#endif  // STRATALLOC_TESTS_SIMULATOR_CUDASIM_VARIABLES_H_
