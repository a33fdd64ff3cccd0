/* SPDX-License-Identifier: Apache-2.0
 *
 * Everything is compiled with hidden visibility. What one shared object of the
 * product offers another is marked with this, where it is declared: the
 * functions of python_shim/bridge_api/ and of python_shim/c_api/, and no
 * others (python_shim/libstratalloc.lds leaves out what is not ours). Plain C,
 * since the second of these is.
 */
#ifndef STRATALLOC_ALLOCATOR_BASE_EXPORT_H_
#define STRATALLOC_ALLOCATOR_BASE_EXPORT_H_

#define STRATALLOC_API __attribute__((visibility("default")))

#endif /* STRATALLOC_ALLOCATOR_BASE_EXPORT_H_ */
