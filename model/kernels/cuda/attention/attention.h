#pragma once

#include <cstdint>

#include "model/kernels/attention/attention.h"  // the formulas, AttentionParams, AttentionStateLayout
#include "model/kernels/cuda/types.h"

// Softmax attention on the GPU: dot product, cosine, additive, location-based and block-local. The
// formulas, the columns of `packed` and the state's layout are those of
// model/kernels/attention/attention.h; the pointers in AttentionParams are to device memory here.
namespace aft::kernels::cuda {

// Computes one token of each row. y [rows, hid]. The workspace serves to split long contexts over
// blocks. REQUIRES: causal; positions below capacity.
int64_t AttentionStepWorkspaceFloats(const AttentionParams& params, int64_t rows);
int AttentionStep(const AttentionParams& params, const StepRows& rows, In packed, State state,
                  Out y, float* workspace, Stream stream);

// The workspace of prompt chunks, or of texts.
int64_t AttentionWorkspaceFloats(const AttentionParams& params, int64_t tokens);

// Computes prompt chunks of any length. A token's result does not depend on the other rows.
int AttentionPrefill(const AttentionParams& params, const ChunkRows& chunks, In packed, State state,
                     Out y, float* workspace, Stream stream);

// Computes whole texts, causal or bidirectional.
int AttentionEncode(const AttentionParams& params, const Texts& texts, In packed, Out y,
                    float* workspace, Stream stream);

}  // namespace aft::kernels::cuda
