#pragma once

#include "model/kernels/cuda/types.h"
#include "model/kernels/wkv/wkv.h"  // the formulas, the layouts of states, parameters

// The recurrences of RWKV-4 and RWKV-7 on the GPU. The arrays of the parameters are on the device.
// Both kernels run token by token in prompts too, so a token's bits do not depend on how its text
// is cut, nor on the other rows.
namespace aft::kernels::cuda {

// Computes the tokens of all rows, and advances their states in place. Without rows.offset every
// row is one token.
//   packed [N, 3 * hid]  r, k, v
//   y [N, hid]
int Wkv4Forward(const Wkv4Params& params, const ChunkRows& rows, In packed, State state, Out y,
                Stream stream);

// Does that for RWKV-7, with packed [N, 6 * hid]: r, w, k, v, a, g. A head has a block, whose
// shared memory holds the head's state if the head is not 64 channels wide. So heads of at most 233
// channels fit into 227 KiB, and of at most 151 into 99 KiB. Wider ones are
// cudaErrorInvalidConfiguration.
int Wkv7Forward(const Wkv7Params& params, const ChunkRows& rows, In packed, State state, Out y,
                Stream stream);

}  // namespace aft::kernels::cuda
