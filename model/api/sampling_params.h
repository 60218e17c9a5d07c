#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

namespace aft {

using TokenId = int32_t;

// The most alternatives that can be reported per token.
inline constexpr int32_t kMaxTopLogprobs = 20;

// The rule of a request for the logit of one token.
struct LogitRule {
  TokenId id = 0;
  float bias = 0.0F;       // added; in [-100, 100], or kBannedBias: the token is never drawn
  uint32_t ends = 0;       // 1: not drawn before output index SamplingParams::ends_from
  uint32_t uncounted = 0;  // 1: the frequency penalty does not count it
};
inline constexpr float kBannedBias = -std::numeric_limits<float>::infinity();

// Room for a request's 300 biases, 1024 bans, 256 bad words, 65 ends and 78 uncounted tokens.
inline constexpr int32_t kMaxLogitRules = 2 * 1024 + 65;

// The rules of a request for single tokens. Immutable once it is shared.
struct LogitRules {
  std::vector<LogitRule> rules;  // in the order of ids, each once; at most kMaxLogitRules
  bool only_these = false;       // no other token is drawn
};

// The numbers of SamplingParams, with the same layout on every device. They are plain values and
// not validated here: the server (server/api) refuses what is out of range and names the field.
//
// Order of application: rules, penalties, temperature, min-p, top-k, top-p. With temperature_last
// it is: rules, penalties, min-p, top-p, top-k, temperature. Log-probabilities are taken from the
// raw logits, before any of these.
struct SamplingNumbers {
  // 0 is greedy: the highest logit, ties to the lower token id. Range [0, 100].
  float temperature = 1.0F;
  // Keeps the k highest logits; among equal ones, those of the lower ids. 0 keeps all.
  int32_t top_k = 0;
  // Keeps the smallest set of tokens, at least one, whose probability reaches top_p. It is measured
  // after what comes before it in the order above; among equal logits the lower ids come first. 1
  // keeps all. Range (0, 1].
  float top_p = 1.0F;
  // Keeps the tokens that are at least min_p times as probable as the best one. These are the
  // tokens whose logit is at least the highest logit + temperature * log(min_p), computed in
  // double; with temperature_last that temperature is 1. 0 keeps all. Range [0, 1].
  float min_p = 0.0F;
  // Applies to every token that occurs in the sequence so far, prompt included: a positive logit is
  // divided by this number, a negative one is multiplied by it. Range (0, 10]; 1 changes nothing.
  float repetition_penalty = 1.0F;
  // Both are subtracted from the logit of every token that the sequence has sampled: the first
  // once, the second once for each time that it was sampled. Range [-2, 2].
  float presence_penalty = 0.0F;
  float frequency_penalty = 0.0F;
  // Below 1, both count only what the sequence has sampled for this request, and the second counts
  // each time that a token was sampled as penalty_decay^(number of tokens sampled since). Range (0,
  // 1].
  float penalty_decay = 1.0F;
  bool temperature_last = false;  // see the order above
  // Number of alternatives with their log-probabilities to report per token; -1: report not even
  // the sampled token's own. At most kMaxTopLogprobs.
  int32_t top_logprobs = -1;
  // Key of the counter-based generator. The same seed, prompt and model draw the same numbers,
  // whatever else is in the batch.
  uint64_t seed = 0;
};

// How the next token of a sequence is drawn from its logits.
struct SamplingParams : SamplingNumbers {
  std::shared_ptr<const LogitRules> rules{};  // null: none
  uint64_t ends_from = 0;                     // see LogitRule::ends
};

// How often a sequence has had one token; penalties depend on it.
struct TokenUse {
  TokenId id = 0;
  uint32_t sampled = 0;  // how often the sequence sampled it; 0: it came with a prompt
};

inline bool operator==(const TokenUse& a, const TokenUse& b) {
  return a.id == b.id && a.sampled == b.sampled;
}

struct TokenLogprob {
  TokenId id = 0;
  float logprob = 0.0F;  // natural logarithm, from the raw logits
};

// No token could be drawn: every logit was NaN or -inf.
inline constexpr TokenId kNoToken = -1;

struct SampledToken {
  TokenId id = 0;
  float logprob = 0.0F;  // 0 when SamplingParams::top_logprobs is -1
  // Best first, ties by lower id; SamplingParams::top_logprobs entries, or fewer when fewer tokens
  // have a logit above -inf.
  std::vector<TokenLogprob> top;
};

}  // namespace aft
