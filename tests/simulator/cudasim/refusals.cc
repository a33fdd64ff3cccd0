// SPDX-License-Identifier: Apache-2.0

#include "tests/simulator/cudasim/refusals.h"

#include <cstdio>

#include "tests/simulator/cudasim/driver_log.h"
#include "tests/simulator/cudasim/error_text.h"
#include "tests/simulator/cudasim/launches.h"
#include "tests/simulator/cudasim/simulator.h"

namespace cudasim {
namespace {

bool StartsWith(const std::string& text, const char* prefix) {
  return text.rfind(prefix, 0) == 0;
}

// Entry points of kernels that have no implementation: what they would have
// computed is missing just like that of a kernel without a twin.
bool IsLaunch(const std::string& function) {
  const bool launch = StartsWith(function, "cuLaunch") ||
                      StartsWith(function, "cudaLaunch") ||
                      StartsWith(function, "__cudaLaunch");
  return launch && function.find("HostFunc") == std::string::npos;
}

}  // namespace

Refusals& Refusals::Get() {
  static Refusals& refusals = *new Refusals;
  return refusals;
}

void Refusals::Declare(const std::string& function) {
  std::lock_guard<std::mutex> lock(mu_);
  declared_.insert(function);
}

bool Refusals::IsDeclared(const std::string& function) {
  std::lock_guard<std::mutex> lock(mu_);
  return declared_.count(function) != 0;
}

Status Refusals::AnswerOf(const std::string& function) {
  struct Rule {
    const char* prefix;
    Status answer;
  };
  static constexpr Rule kRules[] = {
      // Nobody has an OpenGL context here.
      {"cuGL", kInvalidGraphicsContext},
      {"cudaGL", kInvalidGraphicsContext},
      {"cuGraphicsGL", kInvalidGraphicsContext},
      {"cudaGraphicsGL", kInvalidGraphicsContext},
      // A driver without its library for PTX.
      {"cuLink", kJitCompilerNotFound},
      // There is no managed memory, so no range given to these is managed.
      {"cuMemAdvise", kInvalidValue},
      {"cudaMemAdvise", kInvalidValue},
      {"cuMemPrefetch", kInvalidValue},
      {"cudaMemPrefetch", kInvalidValue},
      {"cuMemRangeGetAttribute", kInvalidValue},
      {"cudaMemRangeGetAttribute", kInvalidValue},
  };
  for (const Rule& rule : kRules) {
    if (StartsWith(function, rule.prefix)) return rule.answer;
  }
  return kNotSupported;
}

Status Refusals::Refuse(const char* function) {
  ApiFunction& api = ApiFunction::Named(function);
  if (const Status planned = api.Count(); planned != kOk) {
    if (api.of_runtime()) ThisThread().last_error = planned;
    return planned;
  }
  const Status answer = AnswerOf(function);
  bool first = false;
  {
    std::lock_guard<std::mutex> lock(mu_);
    first = calls_[function]++ == 0;
    ++count_;
  }
  const char* const error = RuntimeErrorName(answer);
  const std::string text = std::string(function) +
                           " is not part of the simulated device: " +
                           (error != nullptr ? error : "an error");
  if (first) std::fprintf(stderr, "cudasim: %s\n", text.c_str());
  if (IsLaunch(function)) Launches::Get().CountRefused(function);
  if (api.of_runtime()) ThisThread().last_error = answer;
  DriverLog::Get().Error(text);
  return answer;
}

long Refusals::count() {
  std::lock_guard<std::mutex> lock(mu_);
  return count_;
}

std::string Refusals::Names() {
  std::lock_guard<std::mutex> lock(mu_);
  std::string text;
  for (const auto& [name, calls] : calls_) {
    text += (text.empty() ? "" : ", ") + name + " " + std::to_string(calls);
  }
  return text;
}

void Refusals::ResetCounts() {
  std::lock_guard<std::mutex> lock(mu_);
  calls_.clear();
  count_ = 0;
}

int Unsupported(const char* function) {
  return Refusals::Get().Refuse(function);
}

}  // namespace cudasim
