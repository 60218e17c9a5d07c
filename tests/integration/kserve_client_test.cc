// NVIDIA's tritonclient, as PyPI has it, against this server: kserve_client.py. AFT_TRITONCLIENT
// names the folder where it and what it needs are installed.
#include <cstdlib>
#include <fstream>
#include <string>

#include "google/protobuf/descriptor.pb.h"
#include "gtest/gtest.h"
#include "tests/integration/kserve_fixture.h"
#include "tests/support/temp_files.h"
#include "tests/unit/client/process.h"

namespace aft::server {
namespace {

TEST(KserveClientTest, TritonsOwnClientWorksUnmodified) {
  const char* const site = std::getenv("AFT_TRITONCLIENT");
  if (site == nullptr) GTEST_SKIP() << "no tritonclient: AFT_TRITONCLIENT is not set";
  google::protobuf::FileDescriptorSet descriptors;
  inference::ModelInferRequest::descriptor()->file()->CopyTo(descriptors.add_file());
  inference::ModelConfig::descriptor()->file()->CopyTo(descriptors.add_file());
  const TempFolder folder;
  const std::string file = folder.File("inference.pb");
  std::ofstream(file, std::ios::binary) << descriptors.SerializeAsString();
  KserveServer server(TestConfigWithEncoder());
  const client::Ended python = client::RunToEnd(
      {"python3", "tests/integration/kserve_client.py", server.server().address(), file}, "",
      {std::string("PYTHONPATH=") + site, "PYTHONDONTWRITEBYTECODE=1", "no_grpc_proxy=127.0.0.1"});
  EXPECT_EQ(python.code, 0) << python.err;
}

}  // namespace
}  // namespace aft::server
