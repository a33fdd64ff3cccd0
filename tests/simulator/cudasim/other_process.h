// SPDX-License-Identifier: Apache-2.0
//
// other_process.h: a second process with a simulated device of its own, for
// tests of what processes share. It is started by exec, not only forked, and
// does what it is told over a socket, one request after the other; descriptors
// travel with a request. OtherProcess is the test's side, RunOtherProcess the
// other's whole life.
//
// Lifetime: the destructor ends the process and waits for it; a process whose
// test died ends by itself, because its socket closes.

#ifndef STRATALLOC_TESTS_SIMULATOR_CUDASIM_OTHER_PROCESS_H_
#define STRATALLOC_TESTS_SIMULATOR_CUDASIM_OTHER_PROCESS_H_

#include <sys/types.h>

#include <cstdint>
#include <string>

namespace cudasim {

enum class Ask : int32_t {
  kSetMode,       // a: async
  kMalloc,        // a: bytes -> value: address
  kFree,          // a: address
  kGetMemory,     // a: address -> handle
  kOpenMemory,    // handle, a: flags -> value: address
  kCloseMemory,   // a: address
  kRead,          // a: address -> value: the byte there
  kWrite,         // a: address, b: byte; a blocking copy
  kFill,          // a: address, b: byte; 2 MiB, queued on the default stream
  kNewEvent,      // a: flags -> value: event
  kGetEvent,      // a: event -> handle
  kOpenEvent,     // handle -> value: event
  kRecord,        // a: event
  kQuery,         // a: event
  kSynchronize,   // a: event
  kDestroyEvent,  // a: event
  kCreate,        // a: handle types -> value: handle of 2 MiB
  kExport,        // a: handle -> descriptor
  kImport,        // descriptor -> value: handle
  kMap,           // a: handle -> value: address, mapped and granted
  kUnmap,         // a: address
  kRelease,       // a: handle
  kUsed,          // -> value: bytes used on device 0
  kViolations,    // -> text: one per line
  kLeaks,         // -> text: the leak report
  kDescriptors,   // -> value: how many are open
  kSetDevice,     // a: device
};

struct Request {
  Ask ask = Ask::kUsed;
  uint64_t a = 0;
  uint64_t b = 0;
  unsigned char handle[64] = {};
};

struct Reply {
  int32_t status = 0;  // CUDA's
  uint64_t value = 0;
  unsigned char handle[64] = {};
  char text[1024] = {};
  int descriptor = -1;  // only on the receiving side
};

class OtherProcess {
 public:
  // `program` is the path of //tests/simulator/cudasim:other_process.
  explicit OtherProcess(const std::string& program);
  OtherProcess(const OtherProcess&) = delete;
  OtherProcess& operator=(const OtherProcess&) = delete;
  ~OtherProcess();

  Reply Do(Ask ask, uint64_t a = 0, uint64_t b = 0);
  Reply DoWith(const void* handle, Ask ask, uint64_t a = 0);
  Reply DoWithDescriptor(int descriptor, Ask ask);
  // Ends it as a crash would, and waits.
  void Kill();
  pid_t pid() const { return pid_; }

 private:
  Reply Exchange(const Request& request, int descriptor);

  pid_t pid_ = -1;
  int socket_ = -1;
};

// Serves requests until the other side closes. Returns the exit status.
int RunOtherProcess(int socket);

}  // namespace cudasim

#endif  // STRATALLOC_TESTS_SIMULATOR_CUDASIM_OTHER_PROCESS_H_
