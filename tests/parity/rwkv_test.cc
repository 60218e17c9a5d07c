// Compares language models of RWKV-4 and RWKV-7 with a reference in float64, with which the package
// `rwkv` agrees.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "ATen/ops/cat.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "gtest/gtest.h"
#include "model/config/tensors.h"
#include "model/network/cpu_network.h"
#include "model/runtime/parallel.h"
#include "model/state/state_pool.h"
#include "tests/parity/goldens.h"

namespace aft {
namespace {

// A tensor, and the tensors of BlinkDL's checkpoints whose rows it has.
struct Name {
  std::string ours;
  std::vector<std::string> theirs;
  bool one_minus = false;
};
// Both versions. In a layer these names follow "layers.N." here, and "blocks.N." there.
const std::vector<Name> kNames = {
    {"embed", {"emb"}},
    {"embed_norm", {"blocks.0.ln0"}},
    {"norm", {"ln_out"}},
    {"head", {"head"}},
    {"norm1", {"ln1"}},
    {"norm2", {"ln2"}},
    {"mixer.r", {"att.receptance"}},
    {"mixer.k", {"att.key"}},
    {"mixer.v", {"att.value"}},
    {"mixer.out", {"att.output"}},
    {"ffn.up", {"ffn.key"}},
    {"ffn.down", {"ffn.value"}},

    {"mixer.shift", {"att.time_mix_r", "att.time_mix_k", "att.time_mix_v"}, true},
    {"mixer.decay", {"att.time_decay"}},
    {"mixer.bonus", {"att.time_first"}},
    {"ffn.shift", {"ffn.time_mix_k", "ffn.time_mix_r"}, true},
    {"ffn.gate", {"ffn.receptance"}},

    {"mixer.shift", {"att.x_r", "att.x_w", "att.x_k", "att.x_v", "att.x_a", "att.x_g"}},
    {"mixer.w", {"att.w"}},
    {"mixer.a", {"att.a"}},
    {"mixer.g", {"att.g"}},
    {"mixer.v_gate", {"att.v"}},
    {"mixer.key_scale", {"att.k_k"}},
    {"mixer.key_rate", {"att.k_a"}},
    {"mixer.bonus", {"att.r_k"}},
    {"mixer.group_norm", {"att.ln_x"}},
    {"mixer.initial_state", {"att.time_state"}},
    {"ffn.shift", {"ffn.x_k"}}};
// The ends of these names.
constexpr struct {
  const char* ours;
  const char* theirs;
  bool transposed = false;
} kEnds[] = {{"", ""},
             {".weight", ".weight"},
             {".bias", ".bias"},
             {".down.weight", "1", true},
             {".up.weight", "2", true},
             {".up.bias", "0"}};

NetworkConfig ConfigOf(const TensorMap& theirs, int version) {
  const auto size = [&](const char* name, int64_t axis) { return theirs.at(name).size(axis); };
  NetworkConfig config;
  config.vocab_size = size("emb.weight", 0);
  config.d_model = size("emb.weight", 1);
  config.d_ff = size("blocks.0.ffn.key.weight", 0);
  config.n_layers = version == 4 ? 3 : 2;
  config.embedding_norm = true;
  config.qkv_bias = false;
  config.head_bias = false;
  config.activation = Activation::kSquaredRelu;
  if (version == 4) {
    config.feed_forward = FeedForwardKind::kGatedChannelMix;
    config.mixer.kind = MixerKind::kWkv4;
    return config;
  }
  config.feed_forward = FeedForwardKind::kChannelMix;
  config.mixer.kind = MixerKind::kWkv7;
  config.mixer.heads = size("blocks.0.att.r_k", 0);
  config.mixer.decay_rank = size("blocks.0.att.w1", 1);
  config.mixer.rate_rank = size("blocks.0.att.a1", 1);
  config.mixer.value_rank = size("blocks.0.att.v1", 1);
  config.mixer.gate_rank = size("blocks.0.att.g1", 1);
  config.mixer.initial_state = theirs.contains("blocks.0.att.time_state");
  return config;
}

TensorMap OurTensors(const TensorMap& theirs, const NetworkConfig& config) {
  TensorMap tensors;
  for (const TensorSpec& spec : ExpectedTensors(config)) {
    const size_t start = absl::StartsWith(spec.name, "layers.") ? spec.name.find('.', 7) + 1 : 0;
    const std::string prefix = start == 0 ? "" : "blocks" + spec.name.substr(6, start - 6);
    for (const Name& row : kNames) {
      for (const auto& end : kEnds) {
        if (row.ours + end.ours != spec.name.substr(start)) continue;
        if (!theirs.contains(prefix + row.theirs[0] + end.theirs)) continue;  // the other version
        std::vector<at::Tensor> parts;
        for (const auto& part : row.theirs) parts.push_back(theirs.at(prefix + part + end.theirs));
        at::Tensor all = at::cat(parts).to(at::kFloat);
        if (end.transposed) all = all.t();
        if (all.dim() == 3) all = all.transpose(1, 2);  // a state; vectors are [1, 1, d]
        if (row.one_minus) all = all.neg().add(1);
        tensors[spec.name] = all.reshape(spec.shape).contiguous();  // some vectors are [1, 1, d]
      }
    }
  }
  return tensors;
}

// A golden model with one sequence.
class RwkvTest : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    Start(ReadGoldens(absl::StrCat("rwkv", GetParam())).tensors, cases_.at("tokens"));
  }

  // Makes the network of these tensors. `text` becomes tokens_.
  void Start(const TensorMap& theirs, const at::Tensor& text) {
    const NetworkConfig config = ConfigOf(theirs, GetParam());
    auto network = CpuNetwork::Create(config, OurTensors(theirs, config));
    ASSERT_TRUE(network.ok()) << network.status();
    network_ = *std::move(network);
    const at::Tensor tokens = text.to(at::kInt);
    tokens_.assign(tokens.const_data_ptr<int32_t>(),
                   tokens.const_data_ptr<int32_t>() + tokens.numel());
    ASSERT_TRUE(network_->Allocate(tokens.numel(), executor_).ok());
    states_ = *StatePool::Create(network_->state_specs(), 1);
  }

  // Reads `tokens` at once, as the next ones of the text. Returns the logits after each.
  std::vector<float> Read(absl::Span<const int32_t> tokens) {
    const auto count = static_cast<int64_t>(tokens.size());
    const int32_t slot = 0;
    const int64_t offsets[] = {0, count};
    std::vector<int64_t> outputs(tokens.size());
    std::iota(outputs.begin(), outputs.end(), 0);
    CpuNetwork::Batch batch;
    batch.rows = {1, &slot, &position_, offsets};
    batch.tokens = count;
    batch.ids = tokens.data();
    batch.outputs = outputs.data();
    batch.output_count = count;
    EXPECT_TRUE(ForwardStep(*network_, batch, states_.parts()).ok());
    position_ += count;
    std::vector<float> logits;
    for (int64_t first = 0; first < count; first += network_->max_logit_rows()) {
      const int64_t rows = std::min(network_->max_logit_rows(), count - first);
      const float* const part = *network_->Logits(first, rows);
      logits.insert(logits.end(), part, part + rows * network_->config().vocab_size);
    }
    return logits;
  }

  // Reads the golden text from its beginning, in chunks of `chunk` tokens.
  std::vector<float> ReadText(size_t chunk) {
    position_ = 0;
    std::vector<float> logits;
    for (size_t at = 0; at < tokens_.size(); at += chunk) {
      const std::vector<float> more = Read(absl::MakeSpan(tokens_).subspan(at, chunk));
      logits.insert(logits.end(), more.begin(), more.end());
    }
    return logits;
  }

  // The state of a layer: its mixer's, and the last inputs of its mixer and of its feed-forward.
  std::vector<float> State(int64_t layer) const {
    std::vector<float> state;
    for (int64_t part = 3 * layer; part < 3 * layer + 3; ++part) {
      const int64_t floats = network_->state_specs()[static_cast<size_t>(part)].floats;
      state.insert(state.end(), states_.part(part).base, states_.part(part).base + floats);
    }
    return state;
  }
  std::vector<float> GoldenState(int64_t layer) const {
    // The package has the last input of the mixer first.
    const std::vector<int64_t> order =
        GetParam() == 4 ? std::vector<int64_t>{1, 2, 3, 0, 4} : std::vector<int64_t>{1, 0, 2};
    std::vector<at::Tensor> parts;
    for (const int64_t part : order) {
      at::Tensor golden =
          cases_.at(absl::StrCat("state.", layer * static_cast<int64_t>(order.size()) + part));
      if (golden.dim() == 3) golden = golden.transpose(1, 2);  // its columns are keys, ours values
      parts.push_back(golden.flatten());
    }
    return Floats(at::cat(parts));
  }

  const TensorMap cases_ = ReadGoldens(absl::StrCat("rwkv", GetParam(), ".cases")).tensors;
  std::vector<int32_t> tokens_;
  const ParallelExecutor executor_{1};
  std::unique_ptr<CpuNetwork> network_;
  StatePool states_;
  int64_t position_ = 0;
};

TEST_P(RwkvTest, LogitsAreThoseOfTheReferenceHoweverTheTextIsCut) {
  const std::vector<float> expected = Floats(cases_.at("expected"));
  for (const size_t chunk : {tokens_.size(), size_t{33}, size_t{7}, size_t{1}}) {
    EXPECT_TRUE(Close(ReadText(chunk), expected, tolerance::kRwkvCpu)) << chunk;
  }
}

TEST_P(RwkvTest, TheStateHasTheNumbersOfThePackagesState) {
  ReadText(tokens_.size());
  for (int64_t layer = 0; layer < network_->config().n_layers; ++layer) {
    EXPECT_TRUE(Close(State(layer), GoldenState(layer), tolerance::kRwkvCpu)) << layer;
  }
}

TEST_P(RwkvTest, ATextBeginsFromATunedState) {
  if (GetParam() == 4) GTEST_SKIP() << "RWKV-4 has no tuned states";
  TensorMap theirs = ReadGoldens("rwkv7").tensors;
  TensorMap tuned = ReadGoldens("rwkv7_tuned").tensors;
  const at::Tensor tokens = tuned.at("tokens");
  const std::vector<float> expected = Floats(tuned.at("expected"));
  theirs.merge(tuned);
  Start(theirs, tokens);
  for (const size_t chunk : {tokens_.size(), size_t{7}, size_t{1}}) {
    EXPECT_TRUE(Close(ReadText(chunk), expected, tolerance::kRwkvCpu)) << chunk;
  }
}

// At every step the likeliest token is ahead of the second by more than the errors of fp32
// (SMALLEST_GAP in make_rwkv_goldens.py).
TEST_P(RwkvTest, GreedyTokensAreThoseOfTheReference) {
  const at::Tensor greedy = cases_.at("greedy");
  std::vector<float> logits = ReadText(tokens_.size());
  logits.erase(logits.begin(), logits.end() - network_->config().vocab_size);
  for (int64_t i = 0; i < greedy.numel(); ++i) {
    const auto token =
        static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
    ASSERT_EQ(token, greedy[i].item<int64_t>()) << "token " << i;
    logits = Read({&token, 1});
  }
}

INSTANTIATE_TEST_SUITE_P(Goldens, RwkvTest, testing::Values(4, 7),
                         [](const auto& test) { return absl::StrCat("Version", test.param); });

}  // namespace
}  // namespace aft
