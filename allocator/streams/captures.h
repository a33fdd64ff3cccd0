// SPDX-License-Identifier: Apache-2.0
// Which streams of one device capture, and what that forbids: while one does,
// no event is asked for or recorded, nothing is given back, waited for or
// evicted, frees of blocks with recorded streams are put off, and no stream's
// work counts as in order, since a graph runs later and perhaps elsewhere.
//
// Captures that torch routes are known by their routes (pool_routes.h). Of
// others, cudaStreamBeginCapture by whoever likes, only the driver knows. It is
// asked about streams other than the default one, which cannot capture: by the
// guard of an operator with evictable operands and by a malloc inside one, when
// a block with recorded streams is freed, and about every stream that an
// eviction is going to fence. Once one is noticed, it is looked for as a routed
// one is, until it is over. What it used stays until it is freed: a handle
// whose last block goes drops its pin. An eviction asks again after it has
// recorded its event.
//
// A stream that somebody may destroy (external_streams.h) is asked while it is
// known to live: by whoever uses it, and, once it was seen to capture, until
// the next call here sees that over.
//
// Thread-safety: the caller holds the device lock, but for Some.
// Lifetime: the device's. Failures that remain: a capture that begins between a
// question and what it was asked for, where that is no event; streams that no
// operator used, as with routes (private_pool.h), an external one also before
// its first operator inside; an external one that is destroyed after its
// capture and before any call here.
// Invariant: SlowReason::kPoolFilter is set while a route or capture is known,
// or a free is put off.
#ifndef STRATALLOC_ALLOCATOR_STREAMS_CAPTURES_H_
#define STRATALLOC_ALLOCATOR_STREAMS_CAPTURES_H_

#include <cstdint>

#include "allocator/cuda/device.h"
#include "allocator/cuda/handle_pool.h"
#include "allocator/heap/block.h"
#include "allocator/memory/handle_table.h"
#include "allocator/state/slow_reasons.h"
#include "allocator/streams/deferred_frees.h"
#include "allocator/streams/pool_routes.h"
#include "allocator/streams/private_pools.h"

namespace stratalloc {

class Captures {
 public:
  struct Parts {
    const Device& device;
    StreamTable& streams;
    PoolRoutes& routes;
    PrivatePools& private_pools;
    DeferredFrees& frees;
    SlowReasons& slow;
  };
  explicit Captures(const Parts& parts) : p_(parts) {}

  // ---- is there one --------------------------------------------------------

  // Does a stream capture that allocated here, ran a guarded operator since, or
  // was recorded on a block?
  bool UnderWay();
  // Not while a stream captures: an event that is recorded for bytes that leave
  // would be part of the graph. And not while one is about to (pool_routes.h).
  bool MayEvict();
  // Does one of these streams of the device's StreamTable capture? All that it
  // has, if they mean the whole device. Asks the driver.
  bool Some(std::uint64_t streams) const;

  // Does `stream` capture, or another that this thread captures on?
  bool IsHere(StreamId stream) const {
    return p_.routes.IsOfThisThread() || p_.device.IsCapturing(stream);
  }
  // A look at those of other threads, for who waits until bytes may leave. Asks
  // the driver, and waits for nothing.
  struct Others {
    bool under_way = false;        // or about to begin
    std::uint64_t times_over = 0;  // PoolRoutes::times_over
  };
  bool SomeOfOthers() { return !MayEvict() && !p_.routes.IsOfThisThread(); }

  // ---- routes and captures come and go --------------------------------------

  // The pool that the stream allocates from.
  PoolId RouteOf(StreamId stream);
  // Finds the routes of captures that are over.
  void Settle();
  // Does the stream capture? Then captures are looked for until it is over.
  bool Note(StreamId stream, bool works_on_it = true);
  // Routes or captures may have changed, or what is put off: for the fast path.
  void Publish();

  // ---- what they keep, and put off
  // -------------------------------------------

  // What an operator made, if its stream captures or its thread does: perhaps
  // no operator of the capture names it.
  void KeepMade(const Block& block);
  // While a stream captures: keeps a freed block for later, true.
  bool PutOff(Block* block);

  // ---- whose work is in order
  // -------------------------------------------------

  // The bit under which a stream's own work is in order; 0 if it shares one.
  std::uint64_t OwnBit(StreamId stream);
  // Asks each stream once; false for everything while a stream captures.
  StreamsIdle AskStreams();

 private:
  const Parts p_;
};

}  // namespace stratalloc

#endif  // STRATALLOC_ALLOCATOR_STREAMS_CAPTURES_H_
