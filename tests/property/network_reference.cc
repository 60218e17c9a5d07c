#include "tests/property/network_reference.h"

#include <algorithm>
#include <cmath>

#include "ATen/ops/empty.h"
#include "absl/strings/match.h"
#include "model/config/kinds.h"
#include "model/config/tensors.h"
#include "tests/support/activation_reference.h"
#include "tests/support/mixer_of.h"
#include "tests/support/mixer_reference.h"

namespace aft {
namespace {

class Reference {
 public:
  Reference(const NetworkConfig& config, const TensorMap& tensors)
      : config_(config), tensors_(tensors) {}

  Matrix Run(const EncoderInput& input) const {
    const auto d = static_cast<size_t>(config_.d_model);
    Matrix x;
    for (size_t t = 0; t < input.text.size(); ++t) {
      const float* row = Data("embed.weight") + static_cast<size_t>(input.text[t]) * d;
      for (double& v : x.emplace_back(row, row + d)) v *= double{config_.embedding_scale};
    }
    for (std::vector<double>& row : Rows(input.vectors)) x.push_back(std::move(row));
    if (config_.architecture == Architecture::kMixer) {
      const std::string mixer = "layers.0.mixer.";
      Matrix keys;
      if (!input.values.empty()) {
        keys = Linear(Rows(input.values), mixer + "qkv");
        if (!input.keys.empty()) TakeKeys(Linear(Rows(input.keys), mixer + "qkv"), keys);
      }
      return Linear(Mix(Linear(x, mixer + "qkv"), mixer, input, keys), mixer + "out");
    }
    for (size_t t = 0; t < x.size(); ++t) AddPosition(t, x[t]);
    if (config_.embedding_norm) x = Norm(x, "embed_norm");
    Matrix first_values;
    for (int64_t i = 0; i < config_.n_layers; ++i) {
      const std::string layer = "layers." + std::to_string(i) + ".";
      const std::string mixer = layer + "mixer.";
      const bool post = config_.post_norm;
      if (SpecOf(config_.mixer.kind).token_shift) {
        AddShiftedLayer(i, layer, first_values, x);
        continue;
      }
      const Matrix packed = Linear(post ? x : Norm(x, layer + "norm1"), mixer + "qkv");
      Add(x, Linear(Mix(packed, mixer, input), mixer + "out"));
      if (post) x = Norm(x, layer + "norm1");
      if (!HasFeedForward(config_, i)) continue;
      Matrix wide = Linear(post ? x : Norm(x, layer + "norm2"), layer + "ffn.up");
      for (std::vector<double>& row : wide) {
        for (double& v : row) v = Activated(config_.activation, v);
      }
      Add(x, Linear(wide, layer + "ffn.down"));
      const bool last = i + 1 == config_.n_layers;
      if (post && (config_.final_norm || !last)) x = Norm(x, layer + "norm2");
    }
    if (!config_.post_norm && config_.final_norm) x = Norm(x, "norm");
    if (HeadRows(config_) == 0) return x;
    return Linear(x, "head", config_.tie_embeddings ? "embed" : "head");
  }

 private:
  // A layer of RWKV. The first one sets `first_values`.
  void AddShiftedLayer(int64_t index, const std::string& layer, Matrix& first_values,
                       Matrix& x) const {
    const std::string mixer = layer + "mixer.";
    const Matrix normed = Norm(x, layer + "norm1");
    Matrix packed(x.size());
    size_t part = 0;
    for (const PackedPart& spec :
         SpecOf(config_.mixer.kind).packed(config_.mixer, MixerWidth(config_))) {
      const Matrix input = Shifted(normed, mixer + "shift", part++);
      Matrix y = spec.rank == 0 ? Linear(input, mixer + spec.name)
                                : LowRank(input, mixer + spec.name, spec.between);
      if (spec.name == std::string("v") && index == 0) first_values = y;
      if (spec.name == std::string("v") && index > 0 && tensors_.count(mixer + "v_gate.up.bias")) {
        const Matrix gate = LowRank(input, mixer + "v_gate", PackedPart::Between::kNothing);
        for (size_t t = 0; t < y.size(); ++t) {
          for (size_t c = 0; c < y[t].size(); ++c) {
            y[t][c] += (first_values[t][c] - y[t][c]) / (1 + std::exp(-gate[t][c]));
          }
        }
      }
      for (size_t t = 0; t < y.size(); ++t) {
        packed[t].insert(packed[t].end(), y[t].begin(), y[t].end());
      }
    }
    Add(x, Linear(Mix(packed, mixer, {}), mixer + "out"));
    const Matrix second = Norm(x, layer + "norm2");
    Matrix wide = Linear(Shifted(second, layer + "ffn.shift", 0), layer + "ffn.up");
    for (std::vector<double>& row : wide) {
      for (double& v : row) v = Activated(config_.activation, v);
    }
    Matrix down = Linear(wide, layer + "ffn.down");
    if (config_.feed_forward == FeedForwardKind::kGatedChannelMix) {
      const Matrix gate = Linear(Shifted(second, layer + "ffn.shift", 1), layer + "ffn.gate");
      for (size_t t = 0; t < down.size(); ++t) {
        for (size_t c = 0; c < down[t].size(); ++c) down[t][c] /= 1 + std::exp(-gate[t][c]);
      }
    }
    Add(x, down);
  }
  Matrix Shifted(const Matrix& x, const std::string& shares, size_t part) const {
    const size_t d = x[0].size();
    const float* const share = Data(shares) + part * d;
    Matrix y = x;
    for (size_t t = 0; t < x.size(); ++t) {
      for (size_t c = 0; c < d; ++c) {
        const double before = t == 0 ? 0.0 : x[t - 1][c];
        y[t][c] = x[t][c] * (1 - double{share[c]}) + before * share[c];
      }
    }
    return y;
  }
  Matrix LowRank(const Matrix& x, const std::string& name, PackedPart::Between between) const {
    Matrix narrow = Linear(x, name + ".down");
    for (std::vector<double>& row : narrow) {
      for (double& v : row) {
        if (between == PackedPart::Between::kTanh) v = std::tanh(v);
        if (between == PackedPart::Between::kSigmoid) v = 1 / (1 + std::exp(-v));
      }
    }
    return Linear(narrow, name + ".up");
  }

  Matrix Rows(const TokenVectors& vectors) const {
    Matrix rows;
    for (auto at = vectors.begin(); at != vectors.end(); at += config_.d_model) {
      rows.emplace_back(at, at + config_.d_model);
    }
    return rows;
  }
  // Replaces the columns of keys, which come from `key`. All other columns come from `value`.
  void TakeKeys(const Matrix& keys, Matrix& packed) const {
    int64_t column = 0;
    for (const PackedPart& part :
         SpecOf(config_.mixer.kind).packed(config_.mixer, MixerWidth(config_))) {
      for (size_t t = 0; part.name == std::string("k") && t < packed.size(); ++t) {
        std::copy_n(keys[t].begin() + column, part.columns, packed[t].begin() + column);
      }
      column += part.columns;
    }
  }

  const float* Data(const std::string& name) const {
    return tensors_.at(name).const_data_ptr<float>();
  }

  void AddPosition(size_t t, std::vector<double>& x) const {
    const size_t d = x.size();
    for (size_t c = 0; c < d; ++c) {
      if (config_.position == PositionKind::kLearned) x[c] += Data("position.weight")[t * d + c];
      if (config_.position == PositionKind::kSinusoidal) {
        const double power = static_cast<double>(c / 2 * 2) / static_cast<double>(d);
        const double angle = static_cast<double>(t) / std::pow(10000.0, power);
        x[c] += c % 2 == 0 ? std::sin(angle) : std::cos(angle);
      }
    }
  }

  static void Add(Matrix& x, const Matrix& y) {
    for (size_t t = 0; t < x.size(); ++t) {
      for (size_t c = 0; c < x[t].size(); ++c) x[t][c] += y[t][c];
    }
  }

  Matrix Linear(const Matrix& x, const std::string& name,
                const std::string& weight_name = "") const {
    const at::Tensor& weight = tensors_.at((weight_name.empty() ? name : weight_name) + ".weight");
    const float* data = weight.const_data_ptr<float>();
    const auto out = static_cast<size_t>(weight.size(0));
    std::vector<double> bias(out, 0.0);
    if (tensors_.count(name + ".bias") > 0) {
      bias.assign(Data(name + ".bias"), Data(name + ".bias") + out);
    }
    Matrix y;
    for (const std::vector<double>& row : x) {
      std::vector<double>& sums = y.emplace_back(bias);
      for (size_t n = 0; n < out; ++n) {
        for (size_t k = 0; k < row.size(); ++k) sums[n] += row[k] * data[n * row.size() + k];
      }
    }
    return y;
  }

  Matrix Norm(const Matrix& x, const std::string& name) const {
    const float* weight = Data(name + ".weight");
    const float* bias = Data(name + ".bias");
    Matrix y = x;
    for (std::vector<double>& row : y) {
      double mean = 0;
      double variance = 0;
      for (const double v : row) mean += v / static_cast<double>(row.size());
      for (const double v : row)
        variance += (v - mean) * (v - mean) / static_cast<double>(row.size());
      for (size_t c = 0; c < row.size(); ++c) {
        row[c] =
            (row[c] - mean) / std::sqrt(variance + double{config_.norm_eps}) * weight[c] + bias[c];
      }
    }
    return y;
  }

  Matrix Mix(const Matrix& packed, const std::string& name, const EncoderInput& input,
             const Matrix& keys = {}) const {
    const int64_t hid = MixerWidth(config_);
    ReferenceTables tables;
    for (const TensorSpec& spec : ExpectedMixerTables(config_.mixer, hid)) {
      const at::Tensor& table = tensors_.at(name + spec.name);
      tables[spec.name] = {table.const_data_ptr<float>(),
                           table.const_data_ptr<float>() + table.numel()};
    }
    const std::vector<double> mask(input.mask.begin(), input.mask.end());
    std::vector<double> pairs;
    if (input.pairs != nullptr) pairs.assign(input.pairs->begin(), input.pairs->end());
    const std::vector<double> y = ReferenceMixer(config_.mixer, hid, Flat(packed), tables, mask,
                                                 input.image_width, pairs, Flat(keys));
    Matrix rows;
    for (auto at = y.begin(); at != y.end(); at += hid) rows.emplace_back(at, at + hid);
    return rows;
  }

  const NetworkConfig& config_;
  const TensorMap& tensors_;
};

NetworkConfig Small(const MixerConfig& mixer) {
  NetworkConfig config;
  config.vocab_size = 256;
  config.d_model = 40;
  config.n_layers = 2;
  config.d_ff = 72;
  UseMixer(mixer, &config);
  const bool growing = mixer.causal && StateGrows(mixer);
  const bool limited = mixer.band_rows > 0 && mixer.length_policy == LengthPolicy::kError;
  if (growing || limited) config.max_seq_len = kCaseTokens;
  return config;
}

// Every kind once.
std::vector<NetworkCase> Kinds(bool causal) {
  std::vector<NetworkCase> cases;
  for (const KindSpec& kind : AllKinds()) {
    if (!causal && kind.token_shift) continue;
    cases.push_back({kind.name, Small(ExampleMixer(kind.kind, kCaseTokens, causal))});
  }
  return cases;
}

}  // namespace

TensorMap RandomTensors(const NetworkConfig& config, TestRandom& random) {
  TensorMap tensors;
  for (const TensorSpec& spec : ExpectedTensors(config)) {
    at::Tensor tensor = at::empty(spec.shape, at::kFloat);
    // Position biases are large enough to matter, and products with the weights do not grow.
    const bool bias = spec.start == TensorStart::kOffsets ||
                      spec.start == TensorStart::kDiagonals || absl::EndsWith(spec.name, "conv.w");
    const double fan_in = spec.shape.size() == 2 ? static_cast<double>(spec.shape[1]) : 25;
    const double spread = bias || spec.name == "embed.weight" ? 1.0 : 1.5 / std::sqrt(fan_in);
    const std::vector<float> values = random.Normals(tensor.numel(), spread);
    std::copy(values.begin(), values.end(), tensor.data_ptr<float>());
    tensors[spec.name] = tensor;
  }
  return tensors;
}

Matrix NetworkReference(const NetworkConfig& config, const TensorMap& tensors,
                        const std::vector<int32_t>& tokens) {
  return Reference(config, tensors).Run({tokens});
}
Matrix NetworkReference(const NetworkConfig& config, const TensorMap& tensors,
                        const EncoderInput& input) {
  return Reference(config, tensors).Run(input);
}

std::vector<double> LogSoftmax(const std::vector<double>& logits) {
  const double max = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const double logit : logits) sum += std::exp(logit - max);
  std::vector<double> logprobs;
  for (const double logit : logits) logprobs.push_back(logit - max - std::log(sum));
  return logprobs;
}

std::vector<NetworkCase> DecoderCases() {
  std::vector<NetworkCase> cases = Kinds(/*causal=*/true);
  const auto add = [&cases](const char* name, const char* mixer) -> NetworkConfig& {
    cases.push_back({name, Small(MixerOf(mixer))});
    return cases.back().config;
  };
  static_assert(kCaseTokens == 96, "as many rows have the tables below");
  add("prefix_blocks_and_tied_head", "aft_local window=5 prefix_block=8").tie_embeddings = true;
  const size_t forms = cases.size();
  add("band_by_position", "aft_local window=5 band_rows=96");
  // These tables have fewer rows than the texts have tokens.
  add("clamp", "aft_local window=5 band_rows=20 length_policy=clamp");
  add("factors_zero",
      "aft_local window=5 band_rows=20 length_policy=zero bias=factors bias_rank=3");
  add("reparameterized_conv", "aft_conv heads=2 window=4 reparameterized=true std_eps=1e-5");
  add("block_local_without_global", "block_local heads=2 block_size=8 global_token=false");
  for (size_t i = forms; i < cases.size(); ++i) cases[i].form = true;

  NetworkConfig& narrow = add("narrow_learned_relu", "aft_simple hidden=23");
  narrow.position = PositionKind::kLearned;
  narrow.position_rows = kCaseTokens + 10;
  narrow.max_seq_len = kCaseTokens;
  narrow.activation = Activation::kRelu;
  narrow.qkv_bias = false;

  NetworkConfig& wide = add("wide_waves_gelu", "cosine heads=2 hidden=64");
  wide.position = PositionKind::kSinusoidal;
  wide.embedding_scale = 1.7F;
  wide.activation = Activation::kGelu;
  wide.head_bias = false;
  wide.tie_embeddings = true;

  NetworkConfig& post = add("post_norm", "aft_local window=5");
  post.post_norm = true;
  post.embedding_norm = true;

  NetworkConfig& two = add("two_mixers_a_block_without_last_norm", "aft_local window=5");
  two.n_layers = 4;
  two.feed_forward_every = 2;
  two.final_norm = false;
  return cases;
}

NetworkCase FullDecodeCase() {
  return {"block_local_full_decode",
          Small(MixerOf("block_local heads=2 block_size=8 full_decode=true"))};
}

std::vector<NetworkCase> EncoderCases() {
  std::vector<NetworkCase> cases = Kinds(/*causal=*/false);
  cases.push_back({"causal_aft_local", Small(MixerOf("aft_local window=5"))});
  cases.push_back({"causal_dot_product", Small(MixerOf("dot_product heads=2"))});
  for (NetworkCase& one : cases) one.config.architecture = Architecture::kEncoder;
  cases[1].config.position = PositionKind::kSinusoidal;
  cases[1].config.activation = Activation::kGelu;
  cases[2].config.position = PositionKind::kLearned;
  cases[2].config.position_rows = kCaseTokens;
  cases.push_back({"classifier", cases[0].config});
  cases.back().config.labels = {"ham", "spam", "unsure"};
  cases.push_back({"vocabulary_head", cases[0].config});
  cases.back().config.vocabulary_head = true;
  cases.back().config.tie_embeddings = true;
  cases.push_back({"post_norm", cases[2].config});
  cases.back().config.post_norm = true;
  cases.back().config.embedding_norm = true;
  // This is the block that the notebook has in a comment.
  cases.push_back({"notebook", cases.back().config});
  cases.back().config.n_layers = 4;
  cases.back().config.feed_forward_every = 2;
  cases.back().config.final_norm = false;
  return cases;
}

NetworkCase ImageCase() {
  NetworkConfig config = Small(MixerOf("aft_conv heads=4 window=3 grid=true causal=false"));
  config.architecture = Architecture::kEncoder;
  config.vocab_size = 17;
  config.position = PositionKind::kLearned;
  config.position_rows = config.max_seq_len = kCaseTokens;
  config.tokenizer.clear();
  return {"images", config};
}

std::vector<NetworkCase> BareMixerCases() {
  std::vector<NetworkCase> cases = Kinds(/*causal=*/false);
  for (NetworkCase& one : Kinds(/*causal=*/true)) {
    if (SpecOf(one.config.mixer.kind).token_shift) continue;
    one.name = "causal_" + one.name;
    one.form = one.config.mixer.kind != MixerKind::kAftLocal;
    cases.push_back(std::move(one));
  }
  const auto add = [&cases](const char* name, const char* mixer) {
    cases.push_back({name, Small(MixerOf(mixer))});
  };
  add("image", "aft_conv heads=4 window=3 grid=true causal=false");
  add("image_narrow", "aft_conv heads=40 window=5 grid=true causal=false hidden=80");
  add("image_reparameterized",
      "aft_conv heads=2 window=7 grid=true causal=false reparameterized=true std_eps=1e-5");
  cases.back().form = true;
  add("without_qkv_bias", "aft_full band_rows=96 bias=full causal=false hidden=24");
  cases.back().config.qkv_bias = false;
  for (NetworkCase& one : cases) {
    one.config.architecture = Architecture::kMixer;
    one.config.vocab_size = one.config.d_ff = 0;
    one.config.n_layers = 1;
    one.config.tokenizer.clear();
  }
  return cases;
}

}  // namespace aft
