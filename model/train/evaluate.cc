#include "model/train/evaluate.h"

#include <algorithm>
#include <numbers>
#include <vector>

#include "ATen/core/grad_mode.h"
#include "ATen/ops/cross_entropy_loss.h"
#include "ATen/ops/empty.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace aft {
namespace {

constexpr int64_t kWindow = 1024;
constexpr int64_t kShortSegment = 256;
constexpr int64_t kMaxBatch = 16;

// Where a run of tokens begins.
struct Place {
  const Corpus::Text* text;
  int64_t offset;
};

int64_t Size(const std::vector<Place>& places) { return static_cast<int64_t>(places.size()); }

// The sum of -log2 p of some tokens, and the number of bytes of text that the tokens stand for.
struct Bits {
  double bits = 0;
  int64_t bytes = 0;
  double per_byte() const { return bits / static_cast<double>(std::max<int64_t>(bytes, 1)); }
};

// Scores `score` tokens of each place, after `skip` tokens that only build up the state.
// The output at position i - 1 predicts the token at offset + i.
Bits SumBits(const Corpus& corpus, const TrainNetwork& network, const std::vector<Place>& places,
             int64_t skip, int64_t score, int64_t segment, bool bf16) {
  const at::NoGradGuard no_grad;
  const TrainNetwork::Options options{.bf16 = bf16};
  double nats = 0;
  Bits sum;
  for (const Place& place : places) {
    sum.bytes += corpus.Bytes(
        absl::MakeConstSpan(place.text->tokens)
            .subspan(static_cast<size_t>(place.offset + skip + 1), static_cast<size_t>(score)));
  }
  for (size_t first = 0; first < places.size(); first += kMaxBatch) {
    const auto batch = static_cast<int64_t>(std::min<size_t>(kMaxBatch, places.size() - first));
    NetworkCarry carry = EmptyNetworkCarry(network.config(), batch);
    for (int64_t begin = 0; begin < skip + score; begin += segment) {
      at::Tensor input = at::empty({batch, segment}, at::kLong);
      at::Tensor target = at::empty({batch, segment}, at::kLong);
      for (int64_t row = 0; row < batch; ++row) {
        const Place& place = places[first + static_cast<size_t>(row)];
        const int32_t* tokens = place.text->tokens.data() + place.offset + begin;
        std::copy_n(tokens, segment, input.select(0, row).mutable_data_ptr<int64_t>());
        std::copy_n(tokens + 1, segment, target.select(0, row).mutable_data_ptr<int64_t>());
      }
      const int64_t from = std::max<int64_t>(0, skip - begin);
      const at::Tensor logits = network.Forward(input, &carry, options);
      if (from >= segment) continue;
      const at::Tensor scored = logits.slice(1, from, segment);
      nats += at::cross_entropy_loss(scored.reshape({-1, scored.size(2)}),
                                     target.slice(1, from, segment).reshape({-1}), {},
                                     at::Reduction::Sum)
                  .item<double>();
    }
  }
  sum.bits = nats / std::numbers::ln2;
  return sum;
}

int64_t HeldOutTokens(const Corpus::Text& text) {
  return static_cast<int64_t>(text.tokens.size()) - text.train_tokens;
}

// `count` places spread evenly over the held-out parts, each with `length` tokens and one more
// after them.
std::vector<Place> Spread(const Corpus& corpus, int64_t count, int64_t length) {
  std::vector<Place> places;
  int64_t seen = 0;  // tokens of the parts so far, which have got their share of the places
  for (const Corpus::Text& text : corpus.texts) {
    const int64_t room = HeldOutTokens(text) - length - 1;
    seen += HeldOutTokens(text);
    if (room < 0) continue;
    const int64_t here = count * seen / corpus.held_out_tokens() - Size(places);
    for (int64_t i = 0; i < here; ++i) {
      places.push_back({&text, text.train_tokens + room * i / std::max<int64_t>(1, here - 1)});
    }
  }
  return places;
}

}  // namespace

HeldOut EvaluateHeldOut(const TrainNetwork& network, const Corpus& corpus, int64_t segment,
                        int64_t tokens, bool bf16) {
  tokens = std::clamp(tokens, segment, corpus.held_out_tokens());
  HeldOut result;
  const std::vector<Place> places = Spread(corpus, tokens / segment, segment);
  AFT_CHECK(!places.empty());
  result.fresh = SumBits(corpus, network, places, 0, segment, segment, bf16).per_byte();

  Bits all;
  int64_t seen = 0;      // tokens of the texts so far
  int64_t measured = 0;  // of their share of `tokens`, those that were measured
  for (const Corpus::Text& text : corpus.texts) {
    seen += HeldOutTokens(text);
    const double share = static_cast<double>(seen) / static_cast<double>(corpus.held_out_tokens());
    const auto wanted = static_cast<int64_t>(static_cast<double>(tokens) * share) - measured;
    const int64_t length = std::min(wanted, HeldOutTokens(text) - 1) / segment * segment;
    if (length == 0) continue;
    measured += length;
    const Bits bits =
        SumBits(corpus, network, {{&text, text.train_tokens}}, 0, length, segment, bf16);
    all.bits += bits.bits;
    all.bytes += bits.bytes;
  }
  result.carried = all.per_byte();
  return result;
}

absl::StatusOr<double> EvaluateAtPosition(const TrainNetwork& network, const Corpus& corpus,
                                          int64_t position, int64_t windows, bool bf16) {
  const int64_t block = network.config().mixer.prefix_block;
  if (block > 0 && kShortSegment % block != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("figures by position need a mixer.prefix_block that divides ", kShortSegment,
                     ", the checkpoint has ", block));
  }
  std::vector<Place> places;
  const int64_t piece = position < kWindow ? position : kWindow;
  for (const Place& window : Spread(corpus, windows, kWindow)) {
    if (window.offset < position) {
      return absl::InvalidArgumentError(
          absl::StrCat(window.text->path, ": too short for figures at position ", position,
                       ": its held-out part begins at token ", window.text->train_tokens));
    }
    for (int64_t begin = 0; begin < kWindow; begin += piece) {
      places.push_back({window.text, window.offset + begin - position});
    }
  }
  if (places.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "figures by position need a text that holds out ", kWindow + 1, " tokens or more"));
  }
  // The short segment divides position and piece; larger segments are quicker.
  const int64_t segment = position % kWindow == 0 ? kWindow : kShortSegment;
  return SumBits(corpus, network, places, position, piece, segment, bf16).per_byte();
}

}  // namespace aft
