// NVIDIA's tritonclient, used by client.py, calls this server.
#include <fstream>
#include <string>

#include "google/protobuf/descriptor.pb.h"
#include "gtest/gtest.h"
#include "tests/integration/oip/fixture.h"
#include "tests/support/temp_files.h"

namespace aft::server {
namespace {

TEST(OipClientTest, TritonsOwnClientWorksUnmodified) {
  google::protobuf::FileDescriptorSet descriptors;
  inference::ModelInferRequest::descriptor()->file()->CopyTo(descriptors.add_file());
  inference::ModelConfig::descriptor()->file()->CopyTo(descriptors.add_file());
  const TempFolder folder;
  const std::string file = folder.File("inference.pb");
  std::ofstream(file, std::ios::binary) << descriptors.SerializeAsString();
  OipServer server(TestConfigWithEncoder());
  RunTritonclient("client.py", server.server(), {file});
}

}  // namespace
}  // namespace aft::server
