// SPDX-License-Identifier: Apache-2.0
//
// The program of other_process.h; its socket is descriptor 3.

#include "tests/simulator/cudasim/other_process.h"

int main() { return cudasim::RunOtherProcess(3); }
