// SPDX-License-Identifier: Apache-2.0
#include "allocator/streams/pool_routes.h"

#include <algorithm>
#include <utility>

#include "allocator/base/check.h"
#include "allocator/memory/external_streams.h"

namespace stratalloc {

PoolRoute* PoolRoutes::Of(PoolId pool) {
  const auto found =
      std::find_if(routes_.begin(), routes_.end(),
                   [&](const PoolRoute& route) { return route.pool == pool; });
  return found == routes_.end() ? nullptr : &*found;
}

void PoolRoutes::Add(PoolRoute route) {
  STRATALLOC_CHECK(Of(route.pool) == nullptr, "a pool has one route");
  routes_.push_back(std::move(route));
  Publish();
}

void PoolRoutes::Remove(const PoolRoute* route) {
  routes_.erase(routes_.begin() + (route - routes_.data()));
  (void)SomeNotedCapture();
  Publish();
}

PoolRoute* PoolRoutes::For(StreamId stream) {
  for (auto route = routes_.rbegin(); route != routes_.rend(); ++route) {
    // Of one that is over by the driver's word there is nothing to accept.
    if (route->over && !ExternalStreams::Has(route->stream)) continue;
    if (!route->filter(stream)) continue;
    // Of the others the pool is asked.
    if (ExternalStreams::Has(stream)) NoteCapture(stream);
    return &*route;
  }
  return nullptr;
}

void PoolRoutes::Reopen(PoolRoute& route) {
  route.over = false;
  route.looks = 0;
  Publish();
}

bool PoolRoutes::NoteCapture(StreamId stream, bool works_on_it) {
  if (!device_.IsCapturing(stream)) return false;
  if (!Knows(stream)) {
    captures_.push_back({stream});
    Publish();
  }
  for (Noted& one : captures_) {
    if (works_on_it && one.stream == stream &&
        one.thread == std::thread::id{}) {
      one.thread = std::this_thread::get_id();
    }
  }
  return true;
}

bool PoolRoutes::Knows(StreamId stream) const {
  return std::any_of(captures_.begin(), captures_.end(),
                     [&](const Noted& one) { return one.stream == stream; });
}

bool PoolRoutes::IsOfThisThread() const {
  const std::thread::id self = std::this_thread::get_id();
  return std::any_of(routes_.begin(), routes_.end(),
                     [&](const PoolRoute& route) {
                       return route.open() && route.thread == self;
                     }) ||
         std::any_of(captures_.begin(), captures_.end(),
                     [&](const Noted& one) { return one.thread == self; });
}

bool PoolRoutes::SomeNotedCapture() {
  if (std::erase_if(captures_, [&](const Noted& one) {
        return !device_.IsCapturing(one.stream);
      }) > 0) {
    Publish();
  }
  return !captures_.empty();
}

bool PoolRoutes::SomeOpen() const {
  return std::any_of(routes_.begin(), routes_.end(),
                     [](const PoolRoute& route) { return route.open(); });
}

bool PoolRoutes::SomeDoubtful() const {
  return std::any_of(routes_.begin(), routes_.end(), [](const auto& route) {
    return route.open() && route.looks > 0;
  });
}

std::vector<PoolRoute*> PoolRoutes::Settle() {
  std::vector<PoolRoute*> over;
  (void)SomeNotedCapture();
  for (PoolRoute& route : routes_) {
    if (!route.open()) continue;
    if (Captures(route)) {
      route.looks = 0;
      continue;
    }
    const bool own = route.thread == std::this_thread::get_id();
    if (!own && ExternalStreams::Has(route.stream)) continue;
    const std::int64_t now = now_();
    if (route.looks == 0 || now - route.looked_at >= kLookNs) {
      ++route.looks;
      route.looked_at = now;
    }
    if (!own && route.looks < kLooks) continue;
    route.over = true;
    over.push_back(&route);
  }
  if (!over.empty()) Publish();
  return over;
}

bool PoolRoutes::Captures(const PoolRoute& route) const {
  if (!ExternalStreams::Has(route.stream)) {
    return device_.IsCapturing(route.stream);
  }
  return Knows(route.stream);
}

void PoolRoutes::Publish() {
  const bool some = !captures_.empty() || SomeOpen();
  if (may_capture_.exchange(some) && !some) times_over_.fetch_add(1);
  // Of a stream that is not asked the filter tells whether it captures after
  // all.
  may_route_.store(
      MayCapture() ||
      std::any_of(routes_.begin(), routes_.end(), [](const PoolRoute& route) {
        return !route.over || ExternalStreams::Has(route.stream);
      }));
}

}  // namespace stratalloc
