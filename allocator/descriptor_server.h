// SPDX-License-Identifier: Apache-2.0
// A thread that gives what this process has exported (SharedDescriptors) to
// processes of the same user and to root, over the socket of
// descriptor_socket.h. So memory is shared where the kernel refuses
// pidfd_getfd: under Yama, in containers, between pid namespaces.
//
// The process's own server starts with the first share and ends with exit().
// Its nonce stays the same, so that equal memory has equal bytes.
//
// No PR_SET_PTRACER for receivers that know no socket (PyTorch's own
// allocator). It would let each process of the user trace this one, and read
// much more than what is shared, against the administrator's choice. A process
// also has one tracer alone, and a crash handler of the program may be it.
//
// Thread-safety: any thread. Nonce may be called under kDevice. The thread
// calls neither CUDA nor Python, and handles no signal.
// Locks: kShares. The thread takes it for one system call at a time.
// Errors: Start fails with an errno. A process without a server shares as
// before, by pidfd_getfd; nothing is printed.
// Lifetime: the destructor ends the thread and closes its descriptors. The
// child of a fork closes what it inherited of its parent's, and has a server
// and a nonce of its own from its first share on.
// Invariants: a peer that says nothing holds up no other one. Where all places
// are taken the next peer gets one of them, in turn.
#ifndef STRATALLOC_ALLOCATOR_DESCRIPTOR_SERVER_H_
#define STRATALLOC_ALLOCATOR_DESCRIPTOR_SERVER_H_

#include <poll.h>
#include <pthread.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace stratalloc {

class DescriptorServer {
 public:
  // Of the process's own server, which this starts at its first call. 0 if
  // that failed; it is not tried again.
  static std::uint32_t Nonce();
  // Ends the process's own server; the nonce stays. It does not start again.
  static void Stop();

  // A server under the name of `pid`. nullptr if it cannot be; errno says why.
  static std::unique_ptr<DescriptorServer> Start(std::int32_t pid);
  ~DescriptorServer();
  DescriptorServer(const DescriptorServer&) = delete;
  DescriptorServer& operator=(const DescriptorServer&) = delete;

  std::uint32_t nonce() const { return nonce_; }
  // In the child of a fork: closes this process's copies alone. The object is
  // never used or destroyed afterwards.
  void AbandonAfterFork();

 private:
  DescriptorServer() = default;
  bool Listen(std::int32_t pid);
  bool StartThread();
  void Run();
  // False: this process can have no more descriptors for now.
  bool Accept();
  bool Answer(int peer);
  void Close(std::size_t index);

  static constexpr std::size_t kWake = 0, kListener = 1, kFirstPeer = 2;
  static constexpr std::size_t kPeers = 64;

  std::uint32_t nonce_ = 0;
  // The thread's, once that runs. -1 where nothing is open.
  std::array<pollfd, kFirstPeer + kPeers> polled_{};
  std::size_t next_ = 0;  // the place that is taken where all are
  pthread_t thread_{};
  bool runs_ = false;
};

}  // namespace stratalloc

#endif  // STRATALLOC_ALLOCATOR_DESCRIPTOR_SERVER_H_
