// SPDX-License-Identifier: Apache-2.0
// The routes to private pools, and the captures that are known of.
//
// A route sends allocations to a private pool while it is set: the last route
// whose filter accepts the stream wins. Torch's filter for a graph asks whether
// the stream captures, the one for use_mem_pool whether the thread is its own.
//
// A capture begins and ends without our knowing: torch sets a route and then
// asks the driver, and takes the route back once the driver has ended the
// capture. So nothing is evicted while a route is *open*. Torch may leave a
// route whose capture it could not end: up to 2.12 one that was spoilt, and in
// every minor one that failed before it began. It is *over* when its stream
// does not capture and
// either its own thread is back here, which does nothing else between route and
// capture, or between capture and route's end; or the others have looked kLooks
// times, kLookNs apart. A MemPool's route, whose filter accepts its thread's
// stream at once, is no capture's and never open.
//
// A capture that torch did not begin has no route; whoever uses its stream has
// it noted (captures.h).
//
// Failures that remain: streams of other devices, which join a capture later
// and unseen, can be caught in the microseconds between the look at them and
// their event; a stream that somebody may destroy (external_streams.h) is not
// asked, so that only its own thread tells whether its capture failed.
//
// Knows streams, pools by id and operands by address, no blocks. Thread-safety:
// the device lock, but for MayCapture, MayRoute and times_over, which need
// none. Lifetime:
// the device's.
#ifndef STRATALLOC_ALLOCATOR_STREAMS_POOL_ROUTES_H_
#define STRATALLOC_ALLOCATOR_STREAMS_POOL_ROUTES_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

#include "allocator/base/clock.h"
#include "allocator/base/ids.h"
#include "allocator/cuda/device.h"
#include "allocator/heap/private_pool.h"

namespace stratalloc {

struct PoolRoute {
  PoolId pool{};
  // Called under the device lock; must not allocate or wait.
  std::function<bool(StreamId)> filter{};
  StreamId stream{};         // that captures, or will
  std::thread::id thread{};  // that set it
  bool of_capture = false;
  bool over = false;
  // The thread had an unread error of an earlier capture when it was set.
  bool after_error = false;
  int looks = 0;  // that found no capture, in a row
  std::int64_t looked_at = 0;
  // Operands that it has added to those of its pool.
  std::vector<HandleUse*> operands{};

  bool open() const { return of_capture && !over; }
};

class PoolRoutes {
 public:
  // A look of another thread's counts if the last one that did is as long ago:
  // 200 of them are a second, of which threads that could run had their share.
  static constexpr int kLooks = 200;
  static constexpr std::int64_t kLookNs = 5'000'000;

  explicit PoolRoutes(const Device& device, std::int64_t (*now)() = &NowNs)
      : device_(device), now_(now) {}
  PoolRoutes(const PoolRoutes&) = delete;
  PoolRoutes& operator=(const PoolRoutes&) = delete;

  // False: no stream captures into a private pool here or is about to, and no
  // other capture is known of.
  bool MayCapture() const {
    return may_capture_.load(std::memory_order_relaxed);
  }
  // False: every stream allocates from the device's own pools.
  bool MayRoute() const { return may_route_.load(std::memory_order_relaxed); }

  // nullptr if the pool has none. Until the next Add or Remove.
  PoolRoute* Of(PoolId pool);
  // REQUIRES: the pool has no route.
  void Add(PoolRoute route);
  // REQUIRES: a route of Of's, that is not over.
  void Remove(const PoolRoute* route);
  // The route of `stream`, or nullptr. One that was over and accepts it after
  // all is still over: the caller reopens it.
  PoolRoute* For(StreamId stream);
  void Reopen(PoolRoute& route);  // it is not over

  // Does the stream capture? Then it is known of until it is over, as this
  // thread's if that works on it: others free and record what it uses.
  bool NoteCapture(StreamId stream, bool works_on_it = true);
  // Is a capture that is known of this thread's own, or about to be?
  bool IsOfThisThread() const;
  // How often the last of them was over. No lock.
  std::uint64_t times_over() const {
    return times_over_.load(std::memory_order_relaxed);
  }
  // Forgets what is over of those; is there one left?
  bool SomeNotedCapture();
  bool SomeOpen() const;
  // Could an open one be over, which a later look will tell?
  bool SomeDoubtful() const;
  // Looks at the open ones; those that are over from now on.
  std::vector<PoolRoute*> Settle();

 private:
  bool Captures(const PoolRoute& route) const;
  bool Knows(StreamId stream) const;
  void Publish();

  const Device& device_;
  std::int64_t (*const now_)();
  std::vector<PoolRoute> routes_;
  struct Noted {
    StreamId stream{};
    std::thread::id thread{};  // that worked on it first; or none yet
  };
  std::vector<Noted> captures_;
  std::atomic<bool> may_capture_{false}, may_route_{false};
  std::atomic<std::uint64_t> times_over_{0};
};

}  // namespace stratalloc

#endif  // STRATALLOC_ALLOCATOR_STREAMS_POOL_ROUTES_H_
