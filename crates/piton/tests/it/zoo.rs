//! The zoo of things that a worktree can hold, through the real binary: kept by a checkpoint, put into a
//! second folder by `snapshot restore --to`, and compared. Every file that was captured is the same to the
//! byte and the mode, and whatever was left out is listed.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Command;

use piton_testkit::Sandbox;
use piton_testkit::runs::{OnDisk, data, lay_plan};

const PLAN: &str = "[plan]\nname = 'zoo'\n[[step]]\nid = 'jwt'\n";

/// A file that a snapshot can hold: whether it is a program or a link, and its bytes or target.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Kept {
    kind: char,
    bytes: Vec<u8>,
}

/// Every file and empty folder below a root, without what git calls its own.
fn files(root: &Path) -> BTreeMap<PathBuf, Kept> {
    let mut found = BTreeMap::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        let mut empty = folder != root;
        for entry in fs::read_dir(&folder).expect("a folder").flatten() {
            empty = false;
            let (path, kind) = (entry.path(), entry.file_type().expect("known"));
            let name = path.strip_prefix(root).expect("below").to_owned();
            if entry.file_name() == ".git" {
                continue;
            }
            if kind.is_dir() {
                folders.push(path);
            } else if kind.is_symlink() {
                let bytes = fs::read_link(&path).expect("a link").as_os_str().as_bytes().to_vec();
                found.insert(name, Kept { kind: 'l', bytes });
            } else if kind.is_file() {
                let meta = entry.metadata().expect("there");
                let kind = if meta.permissions().mode() & 0o100 != 0 { 'x' } else { 'f' };
                // What is over the limit is not read: it is not kept either.
                let huge = meta.len() > 1 << 30;
                let bytes = if huge { Vec::new() } else { fs::read(&path).expect("readable") };
                found.insert(name, Kept { kind, bytes });
            } else {
                found.insert(name, Kept { kind: '?', bytes: Vec::new() });
            }
        }
        if empty {
            let name = folder.strip_prefix(root).expect("below").to_owned();
            found.insert(name, Kept { kind: 'd', bytes: Vec::new() });
        }
    }
    found
}

fn put(path: &Path, bytes: impl AsRef<[u8]>) {
    fs::create_dir_all(path.parent().expect("in a folder")).expect("writable");
    fs::write(path, bytes).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
}

fn sh(dir: &Path, script: &str) {
    let status = Command::new("sh").arg("-ec").arg(script).current_dir(dir).status();
    assert!(status.expect("sh starts").success(), "{script}");
}

/// What the repository has before anything else: filters of the user, line ends, something to be sparse.
fn ground() -> Sandbox {
    let sandbox = crate::sandbox();
    let config = sandbox.home().join(".gitconfig");
    let more = "[filter \"lfs\"]\n\tclean = tr a-z A-Z\n\tsmudge = tr A-Z a-z\n\trequired = true\n\
        [core]\n\tautocrlf = true\n[protocol \"file\"]\n\tallow = always\n";
    put(&config, fs::read_to_string(&config).expect("there") + more);
    sandbox.write(".gitattributes", "*.bin filter=lfs\n*.txt text\n");
    sandbox.write("model.bin", "pointer to what is large\n");
    sandbox.write("ends.txt", "a\nb\n");
    sandbox.write("hidden/away", "in a sparse worktree this is not there\n");
    sandbox.write("gone/entirely", "x");
    lay_plan(&sandbox, PLAN);
    let inner = sandbox.root().join("inner");
    fs::create_dir(&inner).expect("writable");
    sandbox.git_in(&inner, &["init", "-q"]);
    put(&inner.join("of-the-submodule"), "x");
    sandbox.git_in(&inner, &["add", "-A"]);
    sandbox.git_in(&inner, &["commit", "-q", "-m", "inner"]);
    sandbox
}

/// Fills a worktree; returns what cannot be kept.
fn fill(sandbox: &Sandbox, root: &Path) -> Vec<&'static str> {
    let path = |name: &str| root.join(name);
    let git = |dir: &Path, args: &[&str]| sandbox.git_in(dir, args);
    let inner = sandbox.root().join("inner");
    git(root, &["submodule", "add", "-q", inner.to_str().expect("text"), "sub"]);
    put(&path("sub/of-the-submodule"), "dirty");
    put(&path("sub/untracked"), "new");
    git(root, &["sparse-checkout", "set", "--no-cone", "/*", "!/hidden/"]);
    assert!(!path("hidden").exists(), "the fault: a sparse worktree");
    put(&path("model.bin"), "Changed By Hand\n");
    put(&path("binary"), [0, 159, 146, 150, 255, 13, 10]);
    put(&path("crlf.txt"), "a\r\nb\nc\r\n");
    put(&path("lfs-pointer"), "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n");
    put(&path("empty"), "");
    put(&path("large"), vec![7; 3 << 20]);
    put(&path("-dash"), "x");
    put(&path("readme.md"), "beside README.md");
    put(&path("new\nline"), "x");
    put(&path("\"quoted\" \\ name"), "x");
    put(&root.join(OsStr::from_bytes(b"caf\xe9/\xff")), "latin");
    put(&path("notes.ignored"), "ignored");
    put(&path(".gitignore"), "plan.toml\npiton.toml\n*.ignored\n");
    put(&path("script.sh"), "#!/bin/sh\n");
    fs::set_permissions(path("script.sh"), fs::Permissions::from_mode(0o755)).expect("ours");
    symlink("nowhere/at/all", path("dangling")).expect("writable");
    symlink(".", path("loop")).expect("writable");
    symlink("b", path("a")).expect("writable");
    symlink("a", path("b")).expect("writable");
    fs::remove_dir_all(path("gone")).expect("removable");
    fs::create_dir_all(path("hollow/inner")).expect("writable");
    sh(root, "mkfifo fifo");
    drop(UnixListener::bind(path("socket")).expect("bound"));
    fs::File::create(path("huge")).expect("writable").set_len(5 << 30).expect("sparse");
    for name in ["nested/full", "nested/unborn"] {
        fs::create_dir_all(path(name)).expect("writable");
        git(&path(name), &["init", "-q"]);
        put(&path(name).join("file"), name);
    }
    git(&path("nested/full"), &["add", "-A"]);
    git(&path("nested/full"), &["commit", "-q", "-m", "inner"]);
    put(&path("fake/.git"), "no repository\n");
    put(&path("fake/file"), "kept");
    put(&path("secret"), "x");
    fs::set_permissions(path("secret"), fs::Permissions::from_mode(0o000)).expect("ours");
    let mut left_out =
        vec!["fake/.git", "fifo", "huge", "nested/full/.git", "nested/unborn/.git", "socket"];
    if fs::read(path("secret")).is_err() {
        left_out.push("secret");
    }
    // Only root can make one.
    let device = Command::new("mknod").args(["device", "c", "1", "3"]).current_dir(root).output();
    if device.is_ok_and(|made| made.status.success()) {
        left_out.push("device");
    }
    left_out.sort_unstable();
    left_out
}

#[test]
fn everything_that_is_captured_comes_back_and_the_rest_is_listed() {
    let sandbox = ground();
    let tree = data(&sandbox, &["worktree", "create", "plan.toml", "jwt"]);
    let root = PathBuf::from(tree["path"].as_str().expect("a path"));
    let at = root.to_str().expect("text");
    data(&sandbox, &["claim", "plan.toml", "--worktree", at, "--step", "jwt"]);
    let left_out = fill(&sandbox, &root);
    let git_dir = PathBuf::from(sandbox.git_in(&root, &["rev-parse", "--absolute-git-dir"]));
    put(&git_dir.join("index.lock"), "somebody else's");
    let untouched = || {
        let of = |args: &[&str]| sandbox.git_in(&root, args);
        let state = [of(&["rev-parse", "HEAD"]), of(&["stash", "list"]), of(&["branch", "-a"])];
        let index = fs::read(git_dir.join("index")).expect("an index");
        let time = |name: &str| {
            let meta = fs::symlink_metadata(root.join(name)).expect("there");
            meta.modified().expect("a time")
        };
        let times = ["binary", "model.bin", "sub/untracked", "huge", "hollow"].map(time);
        (state, index, times, git_dir.join("index.lock").exists())
    };
    let before = untouched();

    let kept = data(&sandbox, &["checkpoint", "plan.toml", "jwt", "--worktree", at]);
    assert_eq!(untouched(), before, "HEAD, branches, stash, index, times and locks");
    let omitted = kept["snapshot"]["omitted"].as_array().expect("a list");
    let listed: Vec<&str> =
        omitted.iter().map(|left| left["path"].as_str().unwrap_or("")).collect();
    assert_eq!(listed, left_out);
    assert!(omitted.iter().all(|left| left["why"].as_str().is_some_and(|why| why.len() > 3)));

    let to = sandbox.root().join("second");
    let state = OnDisk::of(&sandbox.path(".git"));
    let run = kept["handle"].as_str().map(str::to_owned);
    let run = run.unwrap_or_else(|| {
        let shown = data(&sandbox, &["show"]);
        shown["run"]["handle"].as_str().expect("a handle").to_owned()
    });
    let step = format!("{run}/jwt");
    let args = ["snapshot", "restore", &step, "--to", to.to_str().expect("text")];
    data(&sandbox, &args);
    assert_eq!(state.differences(&OnDisk::of(&sandbox.path(".git"))), Vec::<PathBuf>::new());

    fs::set_permissions(root.join("secret"), fs::Permissions::from_mode(0o644)).expect("ours");
    let mut expected = files(&root);
    let ignored = ["notes.ignored", "plan.toml", "piton.toml"].map(Path::new);
    expected.retain(|path, _| {
        !left_out.iter().any(|left| path == Path::new(left)) && !ignored.contains(&path.as_path())
    });
    let hidden = Kept { kind: 'f', bytes: b"in a sparse worktree this is not there\n".to_vec() };
    expected.insert("hidden/away".into(), hidden);
    let found = files(&to);
    assert!(expected.len() > 25, "{:?}", expected.keys());
    assert_eq!(found.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>());
    for (path, kept) in &expected {
        assert_eq!(found[path], *kept, "{}", path.display());
    }
}
