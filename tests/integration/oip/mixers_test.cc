// Imported modules are served unchanged. Over real gRPC, ModelInfer must answer what the packages
// computed (tests/parity/goldens), with masks and odd lengths, and with any other rows in the
// batch.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "ATen/TensorOperators.h"
#include "ATen/core/Tensor.h"
#include "ATen/ops/zeros.h"
#include "gtest/gtest.h"
#include "model/api/load.h"
#include "model/convert/import.h"
#include "tests/integration/oip/fixture.h"
#include "tests/parity/goldens.h"
#include "tests/property/random_inputs.h"
#include "tests/support/same_bits.h"
#include "tests/support/temp_files.h"
#include "tests/support/tolerances.h"

namespace aft::server {
namespace {

// Checkpoints in a folder. Each is a separate model.
class Models {
 public:
  void Add(const std::string& name, const absl::StatusOr<Import>& import) {
    ASSERT_TRUE(import.ok()) << import.status();
    const absl::Status written = WriteImport(folder_.File(name), *import);
    ASSERT_TRUE(written.ok()) << written;
    names_.push_back(name);
  }

  // The config of one server with all models.
  ServerConfig Config() const {
    ServerConfig config = TestConfig();
    const ModelConfig like = TestConfigWithEncoder().models[1];
    config.models.clear();
    for (const std::string& name : names_) {
      ModelConfig& model = config.models.emplace_back(like);
      model.name = name;
      model.checkpoint_dir = folder_.File(name);
      model.intra_op_threads = 1;
      model.max_batch_rows = 8;
      model.max_batch_tokens = 256;
    }
    return config;
  }

 private:
  const TempFolder folder_;
  std::vector<std::string> names_;
};

// A request with x of shape [B, T, d] or [B, H, W, d]. The mask may be undefined, or has the shape
// of x without the last dimension.
ModelInferRequest Request(const std::string& model, const at::Tensor& x, const at::Tensor& mask) {
  InferBuilder builder(model);
  builder.Raw("inputs_embeds", "FP32", x.sizes().vec(), RawOf(Floats(x)));
  if (mask.defined()) {
    builder.Raw("attention_mask", "FP32", mask.sizes().vec(), RawOf(Floats(mask)));
  }
  return builder.request();
}

at::Tensor Answer(OipServer& server, const std::string& model, const at::Tensor& x,
                  const at::Tensor& mask = {}) {
  const auto answer = server.Infer(Request(model, x, mask));
  EXPECT_TRUE(answer.status.ok()) << model << ": " << answer.status.error_message();
  const std::vector<int64_t> shape = ShapeOf(answer.response, "last_hidden_state");
  EXPECT_EQ(shape, x.sizes().vec());
  at::Tensor y = at::zeros(x.sizes(), at::kFloat);
  const std::vector<float> values = Numbers<float>(answer.response, "last_hidden_state");
  EXPECT_EQ(static_cast<int64_t>(values.size()), y.numel());
  std::copy(values.begin(), values.end(), y.data_ptr<float>());
  return y;
}

class ModulesTest : public testing::Test {
 protected:
  static constexpr const char* kLabml[] = {"labml_aft_local", "labml_aft_local_nobias"};

  ModulesTest() {
    for (const std::string kind : {"full", "simple", "local"}) {
      for (const char* const hidden : {"_16", "_32"}) {
        const std::string name = "aft_pytorch_" + kind + hidden;
        const auto window = kind == "local" ? std::optional<int64_t>(8) : std::nullopt;
        models_.Add(name, ImportAftPytorch(ReadGoldens(name).tensors, window));
        names_.push_back(name);
      }
    }
    for (const std::string name : kLabml) {
      models_.Add(name, ImportLabml(ReadGoldens(name).tensors, {}));
      names_.push_back(name);
    }
  }

  Models models_;
  std::vector<std::string> names_;
};

TEST_F(ModulesTest, AnswersEqualThePackages) {
  OipServer server(models_.Config(), LoadModel);
  ASSERT_TRUE(server.server().WaitReady().ok());
  for (const std::string& name : names_) {
    const TensorMap cases = ReadGoldens(name + ".cases").tensors;
    for (const int64_t t : {1, 7, 8, 9, 64}) {
      const at::Tensor y = Answer(server, name, cases.at("x").narrow(0, 0, t).unsqueeze(0))[0];
      const std::string length = "." + std::to_string(t);
      EXPECT_TRUE(Close(y, cases.at("expected" + length), tolerance::kLayer)) << name << t;
      EXPECT_TRUE(Close(y, cases.at("package" + length), tolerance::kLayer)) << name << t;
    }
  }
}

// The tokens of other texts follow in the row and are masked. The answer must equal the package's
// answer for the text alone.
TEST_F(ModulesTest, HiddenKeysHaveNoEffect) {
  OipServer server(models_.Config(), LoadModel);
  ASSERT_TRUE(server.server().WaitReady().ok());
  for (const std::string& name : names_) {
    const TensorMap cases = ReadGoldens(name + ".cases").tensors;
    const at::Tensor x = cases.at("x").narrow(0, 0, 23).unsqueeze(0);
    for (const int64_t t : {1, 7, 9}) {
      at::Tensor mask = at::zeros({1, 23}, at::kFloat);
      mask.narrow(1, t, 23 - t).fill_(-HUGE_VAL);
      const at::Tensor y = Answer(server, name, x, mask)[0].narrow(0, 0, t);
      EXPECT_TRUE(Close(y, cases.at("package." + std::to_string(t)), tolerance::kLayer)) << name;
    }
  }
}

// labml's own mask has shape [T, T, 1]. Its AFTLocal needs the causal mask.
TEST_F(ModulesTest, LabmlsCausalMaskIsAccepted) {
  OipServer server(models_.Config(), LoadModel);
  ASSERT_TRUE(server.server().WaitReady().ok());
  for (const std::string name : kLabml) {
    const TensorMap cases = ReadGoldens(name + ".cases").tensors;
    std::string mask;
    for (int i = 0; i < 81; ++i) mask += i % 9 <= i / 9 ? '\1' : '\0';
    ModelInferRequest request =
        Request(name, cases.at("x").narrow(0, 0, 9).unsqueeze(0), at::Tensor());
    auto& input = *request.add_inputs();
    input.set_name("attention_mask");
    input.set_datatype("BOOL");
    for (const int64_t size : {9, 9, 1}) input.add_shape(size);
    request.add_raw_input_contents(mask);
    const auto answer = server.Infer(request);
    ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
    EXPECT_TRUE(aft::Close(Numbers<float>(answer.response, "last_hidden_state"),
                           Floats(cases.at("package.9")), tolerance::kLayer));
  }
}

// B requests of one row at once, one request of B rows, and each row alone give the same bits.
TEST_F(ModulesTest, TheSameRowsHaveTheSameBitsInAnyRequest) {
  OipServer server(models_.Config(), LoadModel);
  ASSERT_TRUE(server.server().WaitReady().ok());
  for (const std::string& name : names_) {
    const at::Tensor all = ReadGoldens(name + ".cases").tensors.at("x");
    constexpr int64_t kRows = 6;
    constexpr int64_t kTokens = 11;
    at::Tensor x = at::zeros({kRows, kTokens, all.size(1)}, at::kFloat);
    at::Tensor mask = at::zeros({kRows, kTokens}, at::kFloat);
    for (int64_t row = 0; row < kRows; ++row) {
      x[row].copy_(all.narrow(0, 5 * row, kTokens));
      if (row % 2 == 1) mask[row].narrow(0, row, 3).fill_(-HUGE_VAL);
    }
    const at::Tensor together = Answer(server, name, x, mask);
    std::vector<std::vector<float>> apart(kRows);
    std::vector<std::thread> clients;
    for (int64_t row = 0; row < kRows; ++row) {
      clients.emplace_back([&, row] {
        const auto answer = server.Infer(Request(
            name, x.narrow(0, row, 1), row % 2 == 1 ? mask.narrow(0, row, 1) : at::Tensor()));
        apart[static_cast<size_t>(row)] = Numbers<float>(answer.response, "last_hidden_state");
      });
    }
    for (std::thread& client : clients) client.join();
    for (int64_t row = 0; row < kRows; ++row) {
      const std::vector<float> alone =
          Floats(Answer(server, name, x.narrow(0, row, 1), mask.narrow(0, row, 1)));
      EXPECT_TRUE(SameBits(Floats(together[row]), alone)) << name << " " << row;
      EXPECT_TRUE(SameBits(apart[static_cast<size_t>(row)], alone)) << name << " " << row;
    }
  }
}

// aft_pytorch's AFTFull(max_seqlen=512, dim=768, hidden_dim=64) on [10, 512, 768], with a server's
// default limits. The request has 15.7 MB and more tokens than a step can hold.
TEST(NotebookTest, TheCallOfAftPytorchsReadmeIsAnswered) {
  constexpr int64_t kRows = 10;
  constexpr int64_t kTokens = 512;
  constexpr int64_t kDim = 768;
  constexpr int64_t kHidden = 64;
  TestRandom random;
  const auto normals = [&random](at::IntArrayRef shape, double spread) {
    at::Tensor tensor = at::zeros(shape, at::kFloat);
    const std::vector<float> values = random.Normals(tensor.numel(), spread);
    std::copy(values.begin(), values.end(), tensor.data_ptr<float>());
    return tensor;
  };
  TensorMap tensors = {{"wbias", normals({kTokens, kTokens}, 0.1)},
                       {"project.weight", normals({kDim, kHidden}, 0.1)},
                       {"project.bias", normals({kDim}, 1)}};
  for (const std::string part : {"to_q", "to_k", "to_v"}) {
    tensors[part + ".weight"] = normals({kHidden, kDim}, 0.03);
    tensors[part + ".bias"] = normals({kHidden}, 1);
  }
  Models models;
  models.Add("notebook", ImportAftPytorch(tensors, std::nullopt));
  ServerConfig config = models.Config();
  config.models[0].max_batch_rows = ModelConfig().max_batch_rows;
  config.models[0].max_batch_tokens = ModelConfig().max_batch_tokens;
  config.limits = LimitsConfig();
  OipServer server(config, LoadModel);
  ASSERT_TRUE(server.server().WaitReady().ok());
  const at::Tensor x = normals({kRows, kTokens, kDim}, 1);
  // tritonclient accepts answers of any size, while gRPC's default limit is 4 MiB.
  grpc::ChannelArguments any_size;
  any_size.SetMaxReceiveMessageSize(-1);
  const auto stub = inference::GRPCInferenceService::NewStub(
      TestServer::Connect(server.server().address(), any_size));
  const ModelInferRequest request = Request("notebook", x, {});
  ModelInferResponse response;
  grpc::ClientContext context;
  const auto begin = std::chrono::steady_clock::now();
  const grpc::Status status = stub->ModelInfer(&context, request, &response);
  RecordProperty("milliseconds", static_cast<int>((std::chrono::steady_clock::now() - begin) /
                                                  std::chrono::milliseconds(1)));
  ASSERT_TRUE(status.ok()) << status.error_message();
  const std::vector<float> values = Numbers<float>(response, "last_hidden_state");
  ASSERT_EQ(static_cast<int64_t>(values.size()), x.numel());
  const at::Tensor y = at::zeros(x.sizes(), at::kFloat);
  std::copy(values.begin(), values.end(), y.data_ptr<float>());
  EXPECT_TRUE(SameBits(Floats(Answer(server, "notebook", x.narrow(0, 9, 1))), Floats(y[9])));
  const auto linear = [&](const at::Tensor& in, const std::string& name) {
    return in.matmul(tensors.at(name + ".weight").to(at::kDouble).t()) +
           tensors.at(name + ".bias").to(at::kDouble);
  };
  const at::Tensor row = x[4].to(at::kDouble);
  const at::Tensor k = linear(row, "to_k").exp();
  const at::Tensor w = tensors.at("wbias").to(at::kDouble).exp();
  const at::Tensor mean = w.matmul(k * linear(row, "to_v")) / w.matmul(k);
  EXPECT_TRUE(
      Close(y[4], linear(linear(row, "to_q").sigmoid() * mean, "project"), tolerance::kLayer));
}

}  // namespace
}  // namespace aft::server
