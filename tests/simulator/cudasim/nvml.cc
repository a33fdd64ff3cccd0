// SPDX-License-Identifier: Apache-2.0
//
// As much of NVML as PyTorch asks. An out of memory asks which processes have
// how much of a device. From 2.13 on, PyTorch's allocator also asks before it
// maps an expandable segment, and calls a null pointer where there is no NVML.
// $CUDASIM_NVML_PROCESSES lists the processes, "self:1048576 77:4096" ("-" for
// a process whose memory is not known); $CUDASIM_NVML_FAIL names the function
// that fails.

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <string>
#include <vector>

namespace {

constexpr int kSuccess = 0;
constexpr int kInsufficientSize = 7;
constexpr int kNoPermission = 4;

int Fails(const char* function) {
  const char* failing = std::getenv("CUDASIM_NVML_FAIL");
  return failing != nullptr && std::strcmp(failing, function) == 0
             ? kNoPermission
             : kSuccess;
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

struct FakeProcess {
  unsigned pid;
  unsigned long long used;
};

int nvmlInit_v2() { return Fails("nvmlInit_v2"); }

int nvmlDeviceGetHandleByPciBusId_v2(const char* bus_id, void** handle) {
  static int devices[256];
  // Any simulated device, however long the caller writes its domain.
  const char* colon = std::strchr(bus_id, ':');
  unsigned bus = 0;
  if (colon == nullptr || std::sscanf(colon, ":%2x:00", &bus) != 1 ||
      bus == 0) {
    return kNoPermission;
  }
  *handle = &devices[bus];
  return Fails("nvmlDeviceGetHandleByPciBusId_v2");
}

int nvmlDeviceGetComputeRunningProcesses(void*, unsigned* count,
                                         FakeProcess* out) {
  if (const int failed = Fails("nvmlDeviceGetComputeRunningProcesses")) {
    return failed;
  }
  std::vector<FakeProcess> processes;
  const char* list = std::getenv("CUDASIM_NVML_PROCESSES");
  std::istringstream stream(list == nullptr ? "" : list);
  for (std::string entry; stream >> entry;) {
    const std::size_t colon = entry.find(':');
    const std::string pid = entry.substr(0, colon);
    const std::string used = entry.substr(colon + 1);
    processes.push_back({pid == "self" ? static_cast<unsigned>(getpid())
                                       : static_cast<unsigned>(std::stoul(pid)),
                         used == "-" ? ~0ULL : std::stoull(used)});
  }
  const unsigned room = *count;
  *count = static_cast<unsigned>(processes.size());
  if (room < processes.size()) return kInsufficientSize;
  for (std::size_t i = 0; i < processes.size(); ++i) out[i] = processes[i];
  return kSuccess;
}

// Torch looks these up too, before it asks anything.
int nvmlDeviceGetNvLinkRemoteDeviceType() { return kNoPermission; }
int nvmlDeviceGetNvLinkRemotePciInfo_v2() { return kNoPermission; }
int nvmlDeviceGetComputeRunningProcesses_v3() { return kNoPermission; }
int nvmlSystemGetCudaDriverVersion_v2() { return kNoPermission; }
int nvmlDeviceGetHandleByUUID() { return kNoPermission; }

}  // extern "C"
#pragma GCC visibility pop
