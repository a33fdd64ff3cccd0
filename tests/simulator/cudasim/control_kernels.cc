// SPDX-License-Identifier: Apache-2.0
//
// The control functions of kernels: twins, raw launches, counts.

#include <string>

#include "tests/simulator/cudasim/control.h"
#include "tests/simulator/cudasim/control_text.h"
#include "tests/simulator/cudasim/launches.h"
#include "tests/simulator/cudasim/simulator.h"
#include "tests/simulator/cudasim/variables.h"

using cudasim::CopyText;
using cudasim::Launches;

#pragma GCC visibility push(default)
extern "C" {

void cudasim_register_twin(const char* kernel_name, cudasim_twin twin) {
  Launches::Get().RegisterTwin(kernel_name, twin);
}

void cudasim_set_twin_parameters(const char* kernel_name,
                                 const unsigned long* sizes, int count) {
  Launches::Get().SetParameters(kernel_name, {sizes, sizes + count});
}

void cudasim_set_module_variable(const char* name, unsigned long bytes) {
  cudasim::Variables::Get().RegisterOfModules(name, bytes);
}

void* cudasim_current_stream(void) {
  cudasim::Stream* stream = cudasim::ThisThread().launching;
  return stream == nullptr ? nullptr : reinterpret_cast<void*>(stream->handle);
}

long cudasim_launches_without_twin(void) {
  return Launches::Get().without_twin();
}

long cudasim_launches_with_twin(void) { return Launches::Get().with_twin(); }

int cudasim_last_missing_twin(char* text, int bytes) {
  const std::string name = Launches::Get().last_missing();
  return name.empty() ? -1 : CopyText(name, text, bytes);
}

void cudasim_check_raw_launches(const char* names) {
  cudasim::Simulator::Get();  // reads the environment, which comes first
  Launches::Get().raw_names().Set(names == nullptr ? "" : names);
}

long cudasim_launches_checked(void) { return Launches::Get().checked(); }

int cudasim_last_checked_launch(char* text, int bytes) {
  const std::string name = Launches::Get().last_checked();
  return name.empty() ? -1 : CopyText(name, text, bytes);
}

}  // extern "C"
#pragma GCC visibility pop
