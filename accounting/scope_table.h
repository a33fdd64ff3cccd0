// SPDX-License-Identifier: Apache-2.0
// Scope names, interned once: a ScopeId is an index that never changes its
// meaning while the process lives. Paths are dotted ("BertModel.encoder.
// layer.0"); a user scope opened inside another gets "outer/inner".
//
// Thread-safety: all methods; kScopes lock inside (leaf).
// Lifetime: the table is never destroyed and only grows, about 100 bytes per
// path: a program that puts a step number into a scope's name keeps them all.
// Failure: none; an id that was never interned still has a name to print.
#ifndef STRATALLOC_ACCOUNTING_SCOPE_TABLE_H_
#define STRATALLOC_ACCOUNTING_SCOPE_TABLE_H_

#include <string>
#include <string_view>

#include "allocator/base/ids.h"

namespace stratalloc {

// Same path, same id. The empty path is kRootScope.
ScopeId InternScope(std::string_view path);
// "(no scope)" for the root; "scope #N" for an id never interned.
std::string ScopeName(ScopeId scope);
int ScopeCount();  // ids run from 0 (root) to ScopeCount() - 1

}  // namespace stratalloc

#endif  // STRATALLOC_ACCOUNTING_SCOPE_TABLE_H_
