// SPDX-License-Identifier: Apache-2.0
// Another process of a test: a fork that runs one function and ends with what
// that returns. Neither CUDA nor GoogleTest is used in it.
//
// Thread-safety: one thread. Errors: a fork that the kernel refuses ends the
// test's process. Lifetime: End, or the destructor, waits for the process; one
// that hangs ends after kSeconds.
#ifndef STRATALLOC_ALLOCATOR_FORKED_PROCESS_TEST_H_
#define STRATALLOC_ALLOCATOR_FORKED_PROCESS_TEST_H_

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace stratalloc {

class ForkedProcess {
 public:
  static constexpr unsigned kSeconds = 60;

  // `run` has a socket to the test's process; its result is the exit status.
  explicit ForkedProcess(const std::function<int(int socket)>& run) {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
      abort();
    }
    pid_ = fork();
    if (pid_ < 0) abort();
    if (pid_ == 0) {
      close(ends[0]);
      alarm(kSeconds);
      _exit(run(ends[1]));
    }
    close(ends[1]);
    socket_ = ends[0];
  }
  ~ForkedProcess() { End(); }
  ForkedProcess(const ForkedProcess&) = delete;
  ForkedProcess& operator=(const ForkedProcess&) = delete;

  pid_t pid() const { return pid_; }
  int socket() const { return socket_; }
  // The socket ends, which the process may wait for; then the process.
  int End() {
    if (status_) return *status_;
    close(socket_);
    int status = -1;
    waitpid(pid_, &status, 0);
    status_ = status;
    return status;
  }

 private:
  pid_t pid_ = -1;
  int socket_ = -1;
  std::optional<int> status_;
};

// One message. Zeros where none comes: the other process ended before.
template <typename T>
void SendTo(int socket, const T& value) {
  if (send(socket, &value, sizeof value, MSG_NOSIGNAL) != sizeof value) abort();
}
template <typename T>
T ReceiveFrom(int socket) {
  T value{};
  return recv(socket, &value, sizeof value, 0) == sizeof value ? value : T{};
}
inline void SendText(int socket, std::string_view text) {
  if (send(socket, text.data(), text.size(), MSG_NOSIGNAL) < 0) abort();
}
inline std::string ReceiveText(int socket) {
  char text[4096];
  const ssize_t bytes = recv(socket, text, sizeof text, 0);
  return std::string(text, bytes < 0 ? 0 : static_cast<std::size_t>(bytes));
}
inline void AwaitEnd(int socket) {
  char byte;
  while (recv(socket, &byte, 1, 0) > 0) {
  }
}

// The kernel refuses pidfd_getfd to this process from now on, as it does under
// Docker's profile.
inline void RefusePidfdGetfd() {
  constexpr std::uint32_t kPidfdGetfd = 438;
  sock_filter code[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, kPidfdGetfd, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{4, code};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
      prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) {
    abort();
  }
}

}  // namespace stratalloc

#endif  // STRATALLOC_ALLOCATOR_FORKED_PROCESS_TEST_H_
