// SPDX-License-Identifier: Apache-2.0
// Addresses that DLPack, its C exchange API and __cuda_array_interface__ carry
// out of torch. Nobody says when they are used for the last time, so the block
// stays on the device until it is freed.
//
// Each function brings the bytes back first, without the GIL, and raises
// torch.OutOfMemoryError when there is no room: then nothing was exported.
// Memory that is not ours, or never leaves, passes through.
//
// What DLPack's structures look like is part of its ABI (dmlc/dlpack, version
// 1.2); they are written down again in exports.cc, because this extension is
// built without torch's headers.
#ifndef STRATALLOC_PYTHON_SHIM_EXTENSIONS_OPAQUE_USES_EXPORTS_H_
#define STRATALLOC_PYTHON_SHIM_EXTENSIONS_OPAQUE_USES_EXPORTS_H_

#include "python_shim/extensions/limited_api.h"

namespace stratalloc {

// torch.OutOfMemoryError; kept until the process ends.
void SetExportError(PyObject* type);

PyObject* ExportAddress(PyObject*, PyObject* address);
PyObject* ExportCapsule(PyObject*, PyObject* capsule);
// A capsule of functions of ours around those of `capsule`. TypeError if it is
// of another major version; one process, one API: a second call gives the first
// one's.
PyObject* MakeExchangeApi(PyObject*, PyObject* capsule);

}  // namespace stratalloc

#endif  // STRATALLOC_PYTHON_SHIM_EXTENSIONS_OPAQUE_USES_EXPORTS_H_
