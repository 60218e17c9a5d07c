#pragma once

#include <cstdint>

#include "model/gpu/gpu_network.h"
#include "model/kernels/cuda/sampler/sampler.h"

namespace aft {

// The numbers that decide where a step's arrays are, and the shapes of its launches.
struct GpuStepShape {
  int64_t decode = 0;   // rows of one token
  int64_t chunks = 0;   // rows of several
  int64_t tokens = 0;   // of all rows
  int64_t outputs = 0;  // positions to sample or to score

  int64_t chunk_tokens() const { return tokens - decode; }

  // Rows of one token each, all with an output.
  static GpuStepShape Decode(int64_t rows) { return {rows, 0, rows, rows}; }
};

// A step's arrays, one after the other in one block, so that one copy transfers all of them. The
// block is pinned memory, which the host fills, or its copy on the device.
struct GpuStepInput {
  GpuStepInput(const GpuStepShape& shape, void* block);

  static int64_t Bytes(const GpuStepShape& shape) { return GpuStepInput(shape, nullptr).bytes; }

  // The step in the form that kernels read. `longest`: tokens of the longest chunk.
  GpuNetwork::Batch Batch(const GpuStepShape& shape, int64_t longest,
                          const int32_t* last_sampled) const;

  int64_t* decode_position;   // [decode]
  int64_t* chunk_position;    // [chunks]
  int64_t* chunk_offset;      // [chunks + 1]
  int64_t* token_positions;   // [tokens]
  int64_t* outputs;           // [outputs] tokens; only with chunks: without, output i is token i
  uint64_t* output_index;     // [outputs]
  int32_t* decode_slot;       // [decode]
  int32_t* decode_age;        // [decode]
  int32_t* chunk_slot;        // [chunks]
  int32_t* tokens;            // [tokens]
  int32_t* token_slots;       // [tokens]
  int32_t* output_slot;       // [outputs]; -1: nothing is wanted there
  int32_t* target;            // [outputs]; -1: sample
  uint8_t* decode_generated;  // [decode]
  uint8_t* chunk_generated;   // [chunks]

  int64_t bytes;
};

// The results of a step, also in one block.
struct GpuStepOutput {
  GpuStepOutput(int64_t outputs, void* block);

  static int64_t Bytes(int64_t outputs) { return GpuStepOutput(outputs, nullptr).bytes; }

  // The outputs from `first` on.
  kernels::cuda::SampleOut Out(int64_t first) const;

  int32_t* id;         // [outputs]
  float* logprob;      // [outputs]
  int32_t* top_id;     // [outputs, kMaxTopLogprobs]
  float* top_logprob;  // [outputs, kMaxTopLogprobs]

  int64_t bytes_without_top;  // from the block's start
  int64_t bytes;
};

}  // namespace aft
