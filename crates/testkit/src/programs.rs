//! Where the programs of this package are: the fake agent and the stub of a model. Cargo does not build
//! another package's programs for a test, so each is looked for beside the program under test, and built when
//! it is missing or older than its sources.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::SystemTime;

const PACKAGE: &str = env!("CARGO_MANIFEST_DIR");

/// A program beside `binary`, up to date.
pub(crate) fn beside(binary: &Path, name: &str) -> PathBuf {
    static FOUND: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());
    let mut found = FOUND.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let path = binary.with_file_name(name);
    if found.contains(&path) {
        return path;
    }
    if is_stale(&path, name) {
        let dir = path.parent().expect("a program is in a folder");
        let lock = File::create(dir.join(format!("{name}.lock"))).expect("a file for the lock");
        lock.lock().expect("the lock for building a program");
        if is_stale(&path, name) {
            build(dir, name);
        }
    }
    found.push(path.clone());
    path
}

fn is_stale(program: &Path, name: &str) -> bool {
    let sources = Path::new(PACKAGE).join("src/bin").join(name);
    let newest = fs::read_dir(&sources)
        .expect("the program's sources")
        .filter_map(|entry| changed(&entry.ok()?.path()))
        .max();
    changed(program) < newest
}

fn changed(path: &Path) -> Option<SystemTime> {
    path.metadata().ok()?.modified().ok()
}

/// `dir` is cargo's `<target>/<profile>`. The main package is named too, so that shared dependencies
/// get the same features as for its tests and are not built a second time.
fn build(dir: &Path, name: &str) {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let profile = match dir.file_name().and_then(|name| name.to_str()) {
        Some("debug") | None => "dev",
        Some(name) => name,
    };
    let out = Command::new(cargo)
        .current_dir(PACKAGE)
        .args(["build", "-p", "piton", "-p", "piton-testkit", "--bin", name, "--profile", profile])
        .arg("--target-dir")
        .arg(dir.parent().expect("a profile's folder is in the target folder"))
        .output()
        .expect("cargo can be started");
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{name} does not build:\n{said}");
}
