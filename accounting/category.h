// SPDX-License-Identifier: Apache-2.0
// The names of categories and lifetime classes, as every table, JSON and
// `stratalloc.scope(name, category=...)` spells them.
//
// Thread-safety: pure functions. The strings are static.
#ifndef STRATALLOC_ACCOUNTING_CATEGORY_H_
#define STRATALLOC_ACCOUNTING_CATEGORY_H_

#include "allocator/base/ids.h"

namespace stratalloc {

// "unknown", "parameter", "buffer", "gradient", "optimizer_state",
// "activation", "input", "temporary", "workspace"; "invalid" for a value that
// is none of them.
const char* CategoryName(Category category);
// "unknown", "persistent", "gradient", "optimizer", "transient", "staying";
// "invalid".
const char* LifetimeName(LifetimeClass lifetime);

}  // namespace stratalloc

#endif  // STRATALLOC_ACCOUNTING_CATEGORY_H_
