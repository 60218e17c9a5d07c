// Runs aftctl infer as a process, with images in several file formats, and checks its labels.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_split.h"
#include "inference/grpc_service.pb.h"
#include "tests/support/proto_text.h"
#include "tests/support/temp_files.h"
#include "tests/unit/client/aftctl_fixture.h"

namespace aft::client {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class AftctlInferTest : public AftctlFixture {
 protected:
  AftctlInferTest() {
    v1::Model model;
    model.set_name("digits");
    model.set_vocab_size(17);
    for (const char* label : {"zero", "one", "two", "three"}) model.add_labels(label);
    server_.SetModels({model});
    // The probabilities are 1/8, 1/2, 1/8 and 1/4.
    server_.SetScript(StreamScript<inference::ModelInferResponse>(
        {"outputs { name: 'logits' datatype: 'FP32' shape: [1, 4] contents { fp32_contents: "
         "[-2.0794415, -0.6931472, -2.0794415, -1.3862944] } }"}));
  }

  Ended Run(const std::string& file, const std::vector<std::string>& more = {}, int code = 0) {
    const std::string path = folder_.File("image");
    std::ofstream(path, std::ios::binary) << file;
    Arguments arguments = {"infer", "--model", "digits", "--image", path};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return AftctlFixture::Run(arguments, "", code);
  }

  // Returns the pixels that the server receives for a file.
  std::vector<int64_t> Sent(const std::string& file, const std::vector<std::string>& more = {}) {
    Run(file, more);
    const auto request = server_.last<inference::ModelInferRequest>();
    const auto& ids = request.inputs(0).contents().int64_contents();
    return {ids.begin(), ids.end()};
  }

  const TempFolder folder_;
};

TEST_F(AftctlInferTest, PrintsTheLikeliestLabels) {
  EXPECT_EQ(Run("0 1 2\n3 4 16\n").out, "one\t0.5000\nthree\t0.2500\nzero\t0.1250\n");
  ExpectText(server_.last<inference::ModelInferRequest>(),
             "model_name: 'digits' outputs { name: 'logits' } "
             "inputs { name: 'input_ids' datatype: 'INT64' shape: [1, 2, 3] "
             "         contents { int64_contents: [0, 1, 2, 3, 4, 16] } } "
             "parameters { key: 'binary_data_output' value { bool_param: false } }");
  EXPECT_EQ(Run("5\n", {"--top", "1"}).out, "one\t0.5000\n");
  EXPECT_EQ(Run("5\n", {"--top", "9"}).out,
            "one\t0.5000\nthree\t0.2500\nzero\t0.1250\ntwo\t0.1250\n");
  EXPECT_EQ(nlohmann::json::parse(Run("5\n", {"--json"}).out)["outputs"][0]["name"], "logits");
  Run("5\n", {"--model-version", "7"});
  EXPECT_EQ(server_.last<inference::ModelInferRequest>().model_version(), "7");
  EXPECT_EQ(server_.last<v1::GetRequest>().version(), "7");  // the labels are of that version
}

TEST_F(AftctlInferTest, ReadsRowsOfNumbersAndPgm) {
  EXPECT_THAT(Sent("1,2\n3,4\n\n"), ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(Sent("P2\n# ink\n2 2 # columns, rows\n16\n0 8\n16 3\n"), ElementsAre(0, 8, 16, 3));
  // Pixels become the nearest level of the model.
  EXPECT_THAT(Sent("P2 4 1 255 0 7 8 255"), ElementsAre(0, 0, 1, 16));
  EXPECT_THAT(Sent("P2 3 1 1 0 1 0"), ElementsAre(0, 16, 0));
  EXPECT_THAT(Sent(std::string("P5 3 1 255\n\0\x80\xFF", 14)), ElementsAre(0, 8, 16));
  // A pixel may have the byte of a white space, or two bytes of which the first one is the higher.
  EXPECT_THAT(Sent("P5 1 1 16\n\n"), ElementsAre(10));
  EXPECT_THAT(Sent(std::string("P5 2 1 65535\n\x80\0\xFF\xFF", 17)), ElementsAre(8, 16));
  EXPECT_THAT(Sent("P2 3 1 255 0 128 255", {"--invert"}), ElementsAre(16, 8, 0));
}

TEST_F(AftctlInferTest, FilesThatAreNoImagesAreRefused) {
  const std::pair<std::string, const char*> faults[] = {
      {"", "is empty"},
      {"hello", "is neither PGM (P2 or P5) nor rows of numbers"},
      {"-9223372036854775808\n", "rows of numbers, the ids of pixels"},
      {"1 2\n3\n", "row 2 has 1 pixels, the first row 2"},
      {"P2 0 1 16 1", "PGM: width: must be in [1, 16777216], got \"0\""},
      {"P2 2 9999999 16 1", "PGM: height: must be in [1, 8388608], got \"9999999\""},
      {"P2 2 1 65536 1 2", "PGM: maxval: must be in [1, 65535], got \"65536\""},
      {"P2 2 1 16 1 17", "PGM: pixel: must be in [0, 16], got \"17\""},
      {"P2 2 1 16 1", "PGM: pixel: must be in [0, 16], got \"\""},
      {"P5 2 2 255\nabc", "PGM: ends after 3 of 4 bytes of pixels"},
      {"P5 1 1 16\n\x11", "PGM: pixel 0: is 17, maxval is 16"}};
  for (const auto& [file, why] : faults) EXPECT_THAT(Run(file, {}, 2).err, HasSubstr(why)) << file;
  EXPECT_EQ(server_.last<inference::ModelInferRequest>().inputs_size(), 0);
}

TEST_F(AftctlInferTest, AcceptsATextOrAnImage) {
  const auto run = [this](const Arguments& input, const std::string& standard_input, int code = 0) {
    Arguments arguments = {"infer", "--model", "digits"};
    arguments.insert(arguments.end(), input.begin(), input.end());
    return AftctlFixture::Run(arguments, standard_input, code);
  };
  EXPECT_EQ(run({"--text", "Guten Tag"}, "").out, "one\t0.5000\nthree\t0.2500\nzero\t0.1250\n");
  ExpectText(server_.last<inference::ModelInferRequest>(),
             "model_name: 'digits' outputs { name: 'logits' } "
             "inputs { name: 'text_input' datatype: 'BYTES' shape: [1] "
             "         contents { bytes_contents: ['Guten Tag'] } } "
             "parameters { key: 'binary_data_output' value { bool_param: false } }");
  run({"--text", "-"}, "God dag\n");
  EXPECT_EQ(server_.last<inference::ModelInferRequest>().inputs(0).contents().bytes_contents(0),
            "God dag\n");
  run({}, "", 2);
  run({"--text", "a", "--image", "b"}, "", 2);
}

TEST_F(AftctlInferTest, ClassifiesSeveralTextsInOneCall) {
  server_.SetScript(StreamScript<inference::ModelInferResponse>(
      {"model_name: 'digits' outputs { name: 'logits' datatype: 'FP32' shape: [2, 4] contents { "
       "fp32_contents: [0, 9, 0, 0, 0, 0, 0, 9] } }"}));
  const auto run = [this](const Arguments& more, int code = 0) {
    Arguments arguments = {"infer", "--model", "digits", "--text", "a b", "--text", "-"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return AftctlFixture::Run(arguments, "c\n", code);
  };
  EXPECT_EQ(run({"--top", "1"}).out, "one\t0.9996\nthree\t0.9996\n");
  ExpectText(server_.last<inference::ModelInferRequest>().inputs(0),
             "name: 'text_input' datatype: 'BYTES' shape: [2] "
             "contents { bytes_contents: ['a b', 'c\\n'] }");
  EXPECT_EQ(run({"--top", "2"}).out, "one\t0.9996\nzero\t0.0001\n\nthree\t0.9996\nzero\t0.0001\n");
  const std::vector<std::string> lines = absl::StrSplit(run({"--json"}).out, '\n');
  ASSERT_EQ(lines.size(), 3);  // the last one is empty
  for (size_t i = 0; i < 2; ++i) {
    nlohmann::json response = nlohmann::json::parse(lines[i]);
    EXPECT_EQ(response["model_name"], "digits");
    const auto& output = response["outputs"][0];
    EXPECT_EQ(output["shape"], nlohmann::json({"1", "4"}));
    EXPECT_EQ(output["contents"]["fp32_contents"],
              i == 0 ? nlohmann::json({0, 9, 0, 0}) : nlohmann::json({0, 0, 0, 9}));
  }
  EXPECT_THAT(run({"--text", "third"}, 1).err, HasSubstr("got 8 logits for 3 times 4 labels"));
}

TEST_F(AftctlInferTest, AModelThatIsNoClassifierIsAnError) {
  v1::Model model;
  model.set_name("digits");
  server_.SetModels({model});
  EXPECT_THAT(Run("1\n", {}, 4).err, HasSubstr("model \"digits\" is not a classifier"));
}

TEST_F(AftctlInferTest, ErrorsOfTheServerAreShown) {
  server_.SetScript(FailedScript({grpc::INVALID_ARGUMENT, "input_ids: must be of shape"}));
  EXPECT_THAT(Run("1\n", {}, 4).err, HasSubstr("input_ids: must be of shape"));
}

}  // namespace
}  // namespace aft::client
