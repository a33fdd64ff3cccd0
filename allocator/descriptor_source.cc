// SPDX-License-Identifier: Apache-2.0
#include "allocator/descriptor_source.h"

#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <optional>
#include <system_error>
#include <utility>

#include "allocator/descriptor_socket.h"

namespace stratalloc {
namespace {

// Of Linux 5.6; older headers do not name them.
constexpr long kPidfdOpen = 434;
constexpr long kPidfdGetfd = 438;

std::string Text(int error) { return std::generic_category().message(error); }

// What a failed call on the socket may come from.
std::string WhyNoSocket(const char* call, int error) {
  std::string text = std::string(call) + ": " + Text(error);
  if (error == ECONNREFUSED) {
    text +=
        " (it has ended, or is in another network namespace, or its allocator "
        "is not stratalloc)";
  } else if (error == EAGAIN) {
    text = std::string(call) + ": no answer in " +
           std::to_string(DescriptorSource::kPatienceSeconds) +
           " seconds (is it stopped?)";
  }
  return text;
}

}  // namespace

Result<FileDescriptor> DescriptorSource::Take(std::int32_t descriptor) {
  if (nonce_ == 0) {
    why_no_socket_ =
        "the sender names none (PyTorch's own allocator, or a process that "
        "could make none)";
  }
  if (why_no_socket_.empty()) {
    FileDescriptor given = TakeFromSocket(descriptor);
    if (given.is_open()) return given;
    if (not_shared_) {
      return Fail(ErrorCode::kDevice,
                  "process " + std::to_string(pid_) +
                      " does not share descriptor " +
                      std::to_string(descriptor) +
                      " (any more): it has freed the memory");
    }
    socket_.Close();
  }
  return TakeFromProcess(descriptor);
}

FileDescriptor DescriptorSource::TakeFromSocket(std::int32_t descriptor) {
  if (!socket_.is_open() && !Connect()) return {};
  const DescriptorRequest request{descriptor};
  // Its result is looked at by recvmsg: what a sender said before it hung up
  // can still be read.
  (void)send(socket_.get(), &request, sizeof request, MSG_NOSIGNAL);
  DescriptorAnswer answer{};
  iovec part{&answer, sizeof answer};
  int number = -1;
  alignas(cmsghdr) char room[CMSG_SPACE(sizeof number)] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = room;
  message.msg_controllen = sizeof room;
  const ssize_t read = recvmsg(socket_.get(), &message, MSG_CMSG_CLOEXEC);
  const int error = errno;
  const cmsghdr* const rights = CMSG_FIRSTHDR(&message);
  if (read >= 0 && rights != nullptr && rights->cmsg_type == SCM_RIGHTS) {
    std::memcpy(&number, CMSG_DATA(rights), sizeof number);
  }
  FileDescriptor given(number);
  if (read == 0 || (read < 0 && error == ECONNRESET)) {
    why_no_socket_ =
        "the sender hung up (it has ended, or refuses this process's user)";
  } else if (read < 0) {
    why_no_socket_ = WhyNoSocket("recvmsg", error);
  } else if (read != static_cast<ssize_t>(sizeof answer)) {
    why_no_socket_ = "the sender's answer is ill-formed";
  } else if (answer.error == kNotShared) {
    not_shared_ = true;
  } else if (answer.error != 0) {
    why_no_socket_ = "the sender answered: " + Text(answer.error);
  } else if (!given.is_open()) {
    why_no_socket_ =
        "the answer came without the descriptor (this process may open no more "
        "files, or a security module took it out)";
  } else {
    return given;
  }
  return {};
}

bool DescriptorSource::Connect() {
  socket_ = FileDescriptor(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!socket_.is_open()) {
    why_no_socket_ = WhyNoSocket("socket", errno);
    return false;
  }
  const timeval patience{kPatienceSeconds, 0};
  for (const int option : {SO_SNDTIMEO, SO_RCVTIMEO}) {
    setsockopt(socket_.get(), SOL_SOCKET, option, &patience, sizeof patience);
  }
  const SocketName name = NameOfSocket(pid_, nonce_);
  if (connect(socket_.get(), reinterpret_cast<const sockaddr*>(&name.address),
              name.bytes) != 0) {
    why_no_socket_ = WhyNoSocket("connect", errno);
    return false;
  }
  const std::optional<uid_t> user = UserOfPeer(socket_.get());
  if (!user || !MayTake(geteuid(), *user)) {
    why_no_socket_ = "it is another user's";
    return false;
  }
  return true;
}

Result<FileDescriptor> DescriptorSource::TakeFromProcess(
    std::int32_t descriptor) {
  if (!process_.is_open()) {
    process_ = FileDescriptor(syscall(kPidfdOpen, pid_, 0));
    if (!process_.is_open()) {
      return errno == ENOSYS ? NoCall("pidfd_open")
                             : Refused("pidfd_open:", errno);
    }
  }
  FileDescriptor given(syscall(kPidfdGetfd, process_.get(), descriptor, 0));
  if (given.is_open()) return given;
  return errno == ENOSYS ? NoCall("pidfd_getfd")
                         : Refused("pidfd_getfd: ", errno);
}

tl::unexpected<Error> DescriptorSource::NoCall(const char* name) const {
  return Fail(ErrorCode::kUnsupported,
              std::string("The kernel on this machine does not support the ") +
                  name +
                  " syscall needed to use IPC for CUDA tensors when "
                  "expandable_segments:True is set. Consider using "
                  "expandable_segments:False via "
                  "torch.cuda.memory._set_allocator_settings("
                  "'expandable_segments:False') for this allocation. Its "
                  "socket did not give it either: " +
                  why_no_socket_);
}

tl::unexpected<Error> DescriptorSource::Refused(const char* name,
                                                int error) const {
  const std::string sender = "process " + std::to_string(pid_);
  std::string text = name + Text(error);
  if (error == EPERM) {
    text +=
        ". The kernel does not let this process take descriptors of " + sender +
        ", which shares the memory. Causes: a seccomp filter (docker run "
        "--cap-add=SYS_PTRACE passes Docker's), kernel.yama.ptrace_scope above "
        "0, another user, or " +
        sender + " of this pid namespace is not the sender";
  } else if (error == ESRCH) {
    text += ". There is no " + sender +
            " here: the sender has ended, or is in another pid namespace";
  } else if (error == EBADF) {
    text += ". The memory was freed, or " + sender +
            " of this pid namespace is not the sender";
  }
  text += ". Its socket did not give it either: " + why_no_socket_;
  return Fail(ErrorCode::kDevice, std::move(text));
}

}  // namespace stratalloc
