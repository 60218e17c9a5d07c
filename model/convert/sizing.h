#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "model/checkpoint/checkpoint.h"
#include "nlohmann/json.hpp"

namespace aft {

// How a model will be served on the CPU (see LoadOptions, model/api/load.h), and on which machine.
struct SizingOptions {
  int32_t slots = 64;
  int64_t max_step_tokens = 256;
  int64_t max_batch_tokens = 4096;  // encoders
  int threads = 1;
  int64_t context = 1000;  // tokens of a sequence whose state grows; at most max_seq_len counts
  double bandwidth = 0;    // of the memory, bytes per second; 0: unknown
  double flops = 0;        // operations per second of all threads together; 0: unknown
};

// The resources that serving a checkpoint with this number of tuned states takes, computed by the
// code that allocates them. Of the checkpoint's tensors it reads only the mixers' tables. Numbers
// of bytes are exact, and equal to what a runner reports (tests/property/sizing_test.cc):
//
//   state_bytes_per_sequence, state_bytes_per_token   see Inspect
//   scratch_bytes_per_sequence   in addition to the state, on the CPU
//   sizing.flops_per_token       two for each weight of its products and each float of state
//   sizing.state_traffic_per_token   bytes that a decoded token reads and writes of its sequence's
//                                state and scratch, on average, at `context`
//   sizing.formats.F             with weights in F, a format in which the CPU can serve them:
//     weight_bytes               tables of the mixers included
//     step_bytes                 the part of weight_bytes that every step reads: matrices, norms
//     workspace_bytes            activations and logits of the largest step
//     memory_bytes               all of these, with the states of all slots, their counts for
//                                penalties (8 bytes for each token of the vocabulary) and the tuned
//                                states, without the program
//     tokens_per_second.B        the most tokens that B = 1, 8, slots streams can get together: a
//                                step reads the weights once and moves B states. For language
//                                models only, and only when bandwidth or flops are known
//
// Sums of states are 0 for encoders and bare mixers. Errors: those of the source and of MakeMixer,
// and RESOURCE_EXHAUSTED.
absl::StatusOr<nlohmann::ordered_json> Size(const CheckpointFile& checkpoint,
                                            const SizingOptions& options, int64_t tuned_states);

}  // namespace aft
