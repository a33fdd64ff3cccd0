// SPDX-License-Identifier: Apache-2.0
#include "allocator/descriptor_server.h"

#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "allocator/base/mutex.h"
#include "allocator/cuda/shared_descriptors.h"
#include "allocator/descriptor_socket.h"

namespace stratalloc {
namespace {

// Of 32 bits one is met again after some ten thousand processes of one pid.
constexpr int kTries = 8;
constexpr int kBacklog = 64;
// Until this process is asked again whether it may open files.
constexpr int kRestMs = 100;

// The process's own server.
struct Own {
  Mutex mutex{LockRank::kShares};
  bool tried GUARDED_BY(mutex) = false;
  std::uint32_t nonce GUARDED_BY(mutex) = 0;
  // Atomic for the child of a fork, whose lock may be held for ever.
  std::atomic<DescriptorServer*> server{nullptr};

  static Own& Get() {
    static const int once = [] {
      std::atexit(&DescriptorServer::Stop);
      return pthread_atfork(nullptr, nullptr, [] {
        Own* const parents = current.exchange(nullptr);
        if (parents == nullptr) return;
        DescriptorServer* const server = parents->server.load();
        if (server != nullptr) server->AbandonAfterFork();
      });
    }();
    (void)once;
    Own* found = current.load(std::memory_order_acquire);
    if (found != nullptr) return *found;
    auto* const made = new Own;
    if (current.compare_exchange_strong(found, made)) return *made;
    delete made;
    return *found;
  }

  static constinit std::atomic<Own*> current;
};

constinit std::atomic<Own*> Own::current{nullptr};

bool Send(int peer, int error, int descriptor) {
  DescriptorAnswer answer{error};
  iovec part{&answer, sizeof answer};
  alignas(cmsghdr) char room[CMSG_SPACE(sizeof descriptor)] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (descriptor >= 0) {
    message.msg_control = room;
    message.msg_controllen = sizeof room;
    cmsghdr* const rights = CMSG_FIRSTHDR(&message);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof descriptor);
    std::memcpy(CMSG_DATA(rights), &descriptor, sizeof descriptor);
  }
  return sendmsg(peer, &message, MSG_DONTWAIT | MSG_NOSIGNAL) ==
         static_cast<ssize_t>(sizeof answer);
}

}  // namespace

std::uint32_t DescriptorServer::Nonce() {
  Own& own = Own::Get();
  MutexLock lock(own.mutex);
  if (std::exchange(own.tried, true)) return own.nonce;
  std::unique_ptr<DescriptorServer> made = Start(getpid());
  if (made == nullptr) return 0;
  own.nonce = made->nonce();
  own.server.store(made.release());
  return own.nonce;
}

void DescriptorServer::Stop() {
  Own* const own = Own::current.load(std::memory_order_acquire);
  if (own == nullptr) return;
  {
    MutexLock lock(own->mutex);
    own->tried = true;
  }
  delete own->server.exchange(nullptr);
}

std::unique_ptr<DescriptorServer> DescriptorServer::Start(std::int32_t pid) {
  std::unique_ptr<DescriptorServer> made(new DescriptorServer);
  for (pollfd& one : made->polled_) one = {-1, POLLIN, 0};
  made->polled_[kWake].fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (made->polled_[kWake].fd < 0 || !made->Listen(pid) ||
      !made->StartThread()) {
    const int error = errno;
    made.reset();
    errno = error;
  }
  return made;
}

bool DescriptorServer::Listen(std::int32_t pid) {
  const int listener =
      socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  polled_[kListener].fd = listener;
  if (listener < 0) return false;
  for (int i = 0; i < kTries; ++i) {
    if (getrandom(&nonce_, sizeof nonce_, GRND_NONBLOCK) !=
        static_cast<ssize_t>(sizeof nonce_)) {
      return false;
    }
    if (nonce_ == 0) continue;
    const SocketName name = NameOfSocket(pid, nonce_);
    if (bind(listener, reinterpret_cast<const sockaddr*>(&name.address),
             name.bytes) == 0) {
      return listen(listener, kBacklog) == 0;
    }
    if (errno != EADDRINUSE) return false;
  }
  return false;
}

bool DescriptorServer::StartThread() {
  sigset_t all, before;
  sigfillset(&all);
  if (pthread_sigmask(SIG_SETMASK, &all, &before) != 0) return false;
  const int error = pthread_create(
      &thread_, nullptr,
      [](void* self) -> void* {
        static_cast<DescriptorServer*>(self)->Run();
        return nullptr;
      },
      this);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  runs_ = error == 0;
  if (!runs_) errno = error;
  return runs_;
}

DescriptorServer::~DescriptorServer() {
  if (runs_) {
    const std::uint64_t one = 1;
    // A counter of 64 bits has room for it.
    (void)!write(polled_[kWake].fd, &one, sizeof one);
    pthread_join(thread_, nullptr);
  }
  // Of copies in other processes, too: nothing is left to connect to.
  if (polled_[kListener].fd >= 0) shutdown(polled_[kListener].fd, SHUT_RDWR);
  for (std::size_t i = 0; i < polled_.size(); ++i) Close(i);
}

void DescriptorServer::AbandonAfterFork() {
  for (std::size_t i = 0; i < polled_.size(); ++i) Close(i);
}

void DescriptorServer::Close(std::size_t index) {
  const int descriptor = std::exchange(polled_[index].fd, -1);
  if (descriptor >= 0) close(descriptor);
}

void DescriptorServer::Run() {
  // For top -H and debuggers.
  (void)pthread_setname_np(pthread_self(), "stratalloc-fds");
  while (polled_[kWake].revents == 0) {
    const bool rests = polled_[kListener].events == 0;
    const int ready =
        poll(polled_.data(), polled_.size(), rests ? kRestMs : -1);
    // No signal arrives here; what else fails will fail again.
    if (ready < 0 && errno != EINTR && errno != EAGAIN) return;
    if (ready < 0) continue;
    for (std::size_t i = kFirstPeer; i < polled_.size(); ++i) {
      if (polled_[i].fd < 0 || polled_[i].revents == 0) continue;
      if (!Answer(polled_[i].fd)) Close(i);
    }
    pollfd& listener = polled_[kListener];
    // The program has closed it: the number may be another file's.
    if ((listener.revents & ~POLLIN) != 0) listener.fd = -1;
    const bool full = listener.revents == POLLIN && !Accept();
    listener.events = static_cast<short>(full ? 0 : POLLIN);
  }
}

bool DescriptorServer::Accept() {
  const int peer = accept4(polled_[kListener].fd, nullptr, nullptr,
                           SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (peer < 0) {
    return errno == EAGAIN || errno == EINTR || errno == ECONNABORTED;
  }
  const std::optional<uid_t> user = UserOfPeer(peer);
  if (!user || !MayTake(*user, geteuid())) {
    close(peer);
    return true;
  }
  std::size_t place = kFirstPeer;
  while (place < polled_.size() && polled_[place].fd >= 0) ++place;
  if (place == polled_.size()) {
    place = kFirstPeer + next_;
    next_ = (next_ + 1) % kPeers;
    Close(place);
  }
  polled_[place] = {peer, POLLIN, 0};
  return true;
}

bool DescriptorServer::Answer(int peer) {
  DescriptorRequest request{};
  if (recv(peer, &request, sizeof request, MSG_DONTWAIT) !=
      static_cast<ssize_t>(sizeof request)) {
    return false;
  }
  // Sent under the lock, not a duplicate of it: once the receiver has closed
  // what it took, this process alone holds the memory.
  bool sent = false;
  if (!SharedDescriptors::Use(request.descriptor, [&] {
        sent = Send(peer, 0, request.descriptor);
      })) {
    return Send(peer, kNotShared, -1);
  }
  return sent;
}

}  // namespace stratalloc
