#ifndef AFT_SERVER_RPC_GENERATE_CODEC_H_
#define AFT_SERVER_RPC_GENERATE_CODEC_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "aft/v1/inference.pb.h"
#include "model/api/tokenizer.h"
#include "server/config/config.h"
#include "server/scheduling/request.h"

// aft.v1 messages of Generate <-> the engine's plain values. Pure functions.
namespace aft::server {

// Checks every field and tokenises the prompt. `drawn_seed` is used when the request sets no seed.
// Leaves id, arrival and deadline to the caller. INVALID_ARGUMENT starts with the path of the bad
// field, e.g. "sampling.top_p: must be in (0, 1], got 1.5".
absl::StatusOr<GenerationRequest> DecodeGenerateRequest(const v1::GenerateRequest& message,
                                                        const LimitsConfig& limits,
                                                        const Tokenizer& tokenizer,
                                                        int64_t vocab_size, uint64_t drawn_seed);

// Appends to `message`, which is empty or holds the tokens right before. `with_logprobs`: the
// request asked for them. Returns the bytes that this adds on the wire, approximately.
size_t AppendDelta(const TokenDelta& delta, bool with_logprobs, v1::Delta& message);

// REQUIRES: outcome.status is OK.
v1::Finished EncodeFinished(const Outcome& outcome);

}  // namespace aft::server

#endif  // AFT_SERVER_RPC_GENERATE_CODEC_H_
