// The real program: what its command line and its config ask for, the files that it writes, and the
// codes that it exits with when it does not serve.
#include <signal.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/models/process_fixture.h"
#include "tests/support/tcp.h"
#include "tests/support/temp_files.h"
#include "tests/unit/client/process.h"

namespace aft::server {
namespace {

using client::Process;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;

TEST_F(ServerProcessTest, ABadCommandLineOrConfigGivesOneLineAndADocumentedCode) {
  ExpectExit({AFT_SERVER, "--modle=x"}, 1, "unknown flag --modle; did you mean --model?");
  ExpectExit({AFT_SERVER, "--model=x", "y"}, 1, "unexpected argument y");
  ExpectExit({AFT_SERVER, "--port=1"}, 1, "did you mean --listen_address=127.0.0.1:PORT?");
  ExpectExit({AFT_SERVER}, 2, "give the folder of a checkpoint or --config FILE");
  ExpectExit({AFT_SERVER, "--config=" + folder_.path() + "/none"}, 2, folder_.path() + "/none");
  const std::string config = folder_.path() + "/server.textproto";
  std::ofstream(config) << "models { path: 'tiny' }\nlistenaddress: 'x'\n";
  ExpectExit({AFT_SERVER, "--config=" + config}, 2, "server.textproto:2:14: ");
  std::ofstream(config) << "models { path: 'tiny' slots: -1 }\n";
  WriteBytes(ready_file_, "of a server that was killed");
  const std::string bad_slots = ": models[0].slots: must be in [1, 65536], got -1";
  ExpectExit({AFT_SERVER, "--config=" + config, "--print_config", "--ready_file=" + ready_file_}, 2,
             config + bad_slots);
  EXPECT_TRUE(std::filesystem::exists(ready_file_));  // it may be that of a server that runs
  ExpectExit({AFT_SERVER, "--config=" + config, "--ready_file=" + ready_file_}, 2,
             config + bad_slots);
  EXPECT_FALSE(std::filesystem::exists(ready_file_));
  // A file or folder that is found to be missing when the server starts.
  const std::string none = folder_.File("none");
  WriteConfig("security { clients_file: '" + none + "' }");
  ExpectExit(Command(), 2, none + ": No such file");
  WriteBytes(folder_.File("key"), std::string(32, 'k'));
  WriteConfig("states { folder: '" + none + "' key_files: '" + folder_.File("key") + "' }");
  ExpectExit(Command(), 2, "states.folder: " + none);
  WriteConfig("");
  WriteBytes(ready_file_, "of a server that was killed");
  ExpectExit(Command({"--listen_address=192.0.2.1:1"}), 3, "listen_address: cannot listen on ");
  EXPECT_FALSE(std::filesystem::exists(ready_file_));
}

TEST_F(ServerProcessTest, PrintsVersionHelpAndEffectiveConfig) {
  Process version({AFT_SERVER, "--version"});
  EXPECT_EQ(version.Wait(), 0);
  EXPECT_THAT(version.out(), HasSubstr("aft-server 0."));
  EXPECT_THAT(version.out(), HasSubstr("LibTorch 2.11"));
  Process help({AFT_SERVER, "--help"});
  EXPECT_EQ(help.Wait(), 0);
  EXPECT_THAT(help.out(), HasSubstr("Exit codes"));
  EXPECT_THAT(help.out(), HasSubstr("--ready_file"));
  Process flags(Command({"--print_config", "--slots=300", "--threads=1", "--log_level=debug"}));
  EXPECT_EQ(flags.Wait(), 0);
  EXPECT_THAT(flags.out(), HasSubstr("slots: 300\n"));
  EXPECT_THAT(flags.out(), HasSubstr("max_step_tokens: 301\n"));
  EXPECT_THAT(flags.out(), HasSubstr("intra_op_threads: 1\n"));
  EXPECT_THAT(flags.out(), HasSubstr("level: \"debug\""));
  Process security(Command({"--print_config", "--tls_cert_file=c", "--tls_key_file=k",
                            "--tls_client_ca_file=a", "--http_address=127.0.0.1:9"}));
  EXPECT_EQ(security.Wait(), 0);
  for (const char* field : {" cert_file: \"c\"", " key_file: \"k\"", " client_ca_file: \"a\"",
                            "\nhttp_address: \"127.0.0.1:9\""}) {
    EXPECT_THAT(security.out(), HasSubstr(field));
  }
  ExpectExit(Command({"--slots=0"}), 2, "models[0].slots: must be in [1, 65536], got 0");
  ExpectExit(Command({"--tls_cert_file=x"}), 2, "security.tls");
  ExpectExit(Command({"--tls_cert_file", "", "--tls_key_file", ""}), 1,
             "--tls_cert_file: must not be empty");
  ExpectExit(Command({"--weight_format=int4"}), 2, "models[0].weight_format: ");
  Process config(Command({"--print_config", "--weight_format=int8"}));
  EXPECT_EQ(config.Wait(), 0);
  EXPECT_THAT(config.out(), HasSubstr("weight_format: \"int8\""));
  EXPECT_THAT(config.out(), HasSubstr("name: \"tiny\""));
  EXPECT_THAT(config.out(), HasSubstr("listen_address: \"127.0.0.1:0\""));
  // The flags also override the fields of the config's own models and of its repository.
  WriteConfig("models { path: 'tiny' weight_format: 'bf16' }");
  Process own({AFT_SERVER, "--config=" + config_, "--print_config", "--weight_format=int8"});
  EXPECT_EQ(own.Wait(), 0);
  EXPECT_THAT(own.out(), HasSubstr("weight_format: \"int8\""));
  WriteConfig("repository { folder: 'models' }");
  Process repository({AFT_SERVER, "--config=" + config_, "--print_config", "--slots=300"});
  EXPECT_EQ(repository.Wait(), 0);
  EXPECT_THAT(repository.out(),
              AllOf(HasSubstr("slots: 300\n"), HasSubstr("max_step_tokens: 301\n")));
}

TEST_F(ServerProcessTest, AReadyFileThatCannotBeWrittenIsNamedAfterTheDrain) {
  const std::string path = folder_.File("none/ready");
  Process process(Command({"--ready_file=" + path}));
  EXPECT_EQ(process.Wait(), 3);
  EXPECT_THAT(process.err(), HasSubstr("event=server.stopped\naft-server: cannot write " + path));
}

TEST_F(ServerProcessTest, TheEnvironmentLimitsTheInstructionSet) {
  ExpectExit({"/usr/bin/env", "AFT_INSTRUCTION_SET=AVX1", AFT_SERVER, "--version"}, 1,
             "AFT_INSTRUCTION_SET: must be AVX-512, AVX2 or SSE4, got AVX1");
  std::vector<std::string> command = Command();
  command.insert(command.begin(), {"/usr/bin/env", "AFT_INSTRUCTION_SET=SSE4"});
  Process process(command);
  WaitReady(process);
  process.Signal(SIGINT);
  EXPECT_EQ(process.Wait(), 0) << process.err();
  // A build for AVX2 alone has only portable kernels besides.
  EXPECT_THAT(process.err(),
              AnyOf(HasSubstr("device=\"cpu (SSE4, "), HasSubstr("cpu (portable, ")));
}

TEST_F(ServerProcessTest, APortInUseIsNamed) {
  SilentPort taken;
  ExpectExit(
      Command({"--listen_address=" + taken.address()}), 3,
      "listen_address: cannot listen on " + taken.address() +
          ": Address already in use; choose another address with --listen_address HOST:PORT");
}

TEST_F(ServerProcessTest, ACorruptCheckpointIsNamedAndNotServed) {
  const std::string weights = model_ + "/model.safetensors";
  std::filesystem::resize_file(weights, std::filesystem::file_size(weights) - 4);
  ExpectExit(Command(), 4, weights);
  std::filesystem::remove(weights);
  ExpectExit(Command(), 4, weights);
  std::ofstream(model_ + "/config.json") << "{}";
  ExpectExit(Command(), 4, model_ + "/config.json");
  EXPECT_FALSE(std::filesystem::exists(ready_file_));
}

TEST_F(ServerProcessTest, WithoutAStandardErrorTheLogEntersNoOtherFile) {
  std::filesystem::create_directory(folder_.File("states"));
  WriteBytes(folder_.File("key"), std::string(32, 'k'));
  WriteConfig("states { folder: 'states' key_files: 'key' }");
  std::ofstream(model_ + "/config.json") << "{}";  // so that the process ends
  std::vector<std::string> command = Command();
  command.insert(command.begin(), {"sh", "-c", "exec \"$@\" 2>&-", "sh"});
  EXPECT_EQ(Process(command).Wait(), 4);
  EXPECT_EQ(std::filesystem::file_size(folder_.File("states/lock")), 0U);
}

}  // namespace
}  // namespace aft::server
