// SPDX-License-Identifier: Apache-2.0
// Scope names, interned once: a ScopeId is an index that never changes its
// meaning while the process lives. Paths are dotted ("BertModel.encoder.
// layer.0"); a user scope opened inside another gets "outer/inner", and what a
// layer computes again during backward "layer/recomputation".
//
// Thread-safety: all methods; kScopes lock inside (leaf). A fork waits for it,
// and so a child may intern, too.
// Lifetime: the table is never destroyed and only grows, about 100 bytes per
// path, up to a bound: a program that puts a step number into a scope's name
// must not fill the memory. Beyond it every new path is kOtherScopes.
// Failure: none; an id that was never interned still has a name to print.
#ifndef STRATALLOC_ACCOUNTING_SCOPE_TABLE_H_
#define STRATALLOC_ACCOUNTING_SCOPE_TABLE_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "allocator/base/bytes.h"
#include "allocator/base/ids.h"

namespace stratalloc {

// Paths, and bytes of their names. A model with 48 layers of 128 experts has
// 30 000 modules.
inline constexpr int kMostScopes = 1 << 18;
inline constexpr Bytes kMostScopeNames = Bytes{64} << 20;

// Who pays for scopes beyond the bound: "(other scopes)".
inline constexpr ScopeId kOtherScopes{1};

// Same path, same id. The empty path is kRootScope.
ScopeId InternScope(std::string_view path);
// "(no scope)" for the root; "scope #N" for an id never interned.
std::string ScopeName(ScopeId scope);
// The scope of what `scope` computes again; its own where it is no path.
ScopeId RecomputationOf(ScopeId scope);
int ScopeCount();  // ids run from 0 (root) to ScopeCount() - 1
// How often a path was not interned because of the bound.
std::uint64_t ScopesNotInterned();

}  // namespace stratalloc

#endif  // STRATALLOC_ACCOUNTING_SCOPE_TABLE_H_
