#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "model/checkpoint/checkpoint.h"
#include "nlohmann/json.hpp"

namespace aft {

// How a model is to be served on the CPU, as in LoadOptions (model/api/load.h), and where.
struct SizingOptions {
  int32_t slots = 64;
  int64_t max_step_tokens = 256;
  int64_t max_batch_tokens = 4096;  // encoders
  int threads = 1;
  int64_t context = 1000;  // tokens, or max_seq_len; what a state that grows is read for
  double bandwidth = 0;    // of the memory, bytes a second; 0: unknown
  double flops = 0;        // that the threads do together, a second; 0: unknown
};

// What serving a checkpoint takes, by the code that allocates it; of its tensors only the mixers'
// tables are read. Bytes are exact, and what a runner of it reports
// (tests/property/sizing_test.cc):
//
//   state_bytes_per_sequence, state_bytes_per_token   see Inspect
//   scratch_bytes_per_sequence   beside the state, on the CPU
//   sizing.flops_per_token       two for each weight of its products and each float of state
//   sizing.state_traffic_per_token   bytes that a decoded token reads and writes of its sequence's
//                                state and scratch, on average, at `context`
//   sizing.formats.F             with weights in F, a format that the CPU has:
//     weight_bytes               tables of the mixers included
//     step_bytes                 of them, what every step reads: matrices, norms
//     workspace_bytes            activations and logits of the largest step
//     memory_bytes               all of it, with the states of all slots; the program comes to it
//     tokens_per_second.B        most that B = 1, 8, slots streams can have together: a step reads
//                                the weights once and moves B states. Of language models, and where
//                                bandwidth or flops are known
//
// Sums of states are 0 for encoders. Errors: of the source, those of MakeMixer, RESOURCE_EXHAUSTED.
absl::StatusOr<nlohmann::ordered_json> Size(const CheckpointFile& checkpoint,
                                            const SizingOptions& options);

}  // namespace aft
