// Files that are dropped or chosen: pictures, folders and zip files.

export const isZip = (file) => /\.zip$/i.test(file.name) || file.type === "application/zip";
const CHUNK_FILES = 40, CHUNK_BYTES = 24e6;

const read = (entry) => new Promise((resolve, reject) => entry.file(resolve, reject));
const list = (reader) => new Promise((resolve, reject) => reader.readEntries(resolve, reject));

// All files below a dropped folder.
async function below(entry) {
  if (entry.isFile) return [await read(entry)];
  const files = [], reader = entry.createReader();
  for (let entries = await list(reader); entries.length; entries = await list(reader)) {
    for (const child of entries) if (!child.name.startsWith(".")) files.push(...await below(child));
  }
  return files;
}

// What was dropped, as [{folder, files}]; `folder` is null for single files. A folder that contains folders is opened.
export async function dropped(transfer) {
  const entries = [...transfer.items].map((item) => item.webkitGetAsEntry && item.webkitGetAsEntry()).filter(Boolean);
  if (!entries.length) return [{ folder: null, files: [...transfer.files] }];
  const groups = [{ folder: null, files: [] }];
  const open = async (entry, depth) => {
    if (entry.isFile) return groups[0].files.push(await read(entry));
    const children = [], reader = entry.createReader();
    for (let some = await list(reader); some.length; some = await list(reader)) children.push(...some);
    if (depth === 0 && children.some((child) => child.isDirectory)) {
      for (const child of children) if (child.isDirectory) await open(child, 1);
      return null;
    }
    return groups.push({ folder: entry.name, files: await below(entry) });
  };
  for (const entry of entries) await open(entry, 0);
  return groups.filter((group) => group.files.length);
}

// Files of a folder that was chosen with the file dialog, by class.
export function chosenFolder(files) {
  const groups = new Map();
  const deep = [...files].some((file) => file.webkitRelativePath.split("/").length > 2);
  for (const file of files) {
    const parts = file.webkitRelativePath.split("/");
    if (parts.some((part) => part.startsWith(".")) || (deep && parts.length < 3)) continue;
    const folder = deep ? parts[1] : parts[0];
    groups.set(folder, [...(groups.get(folder) || []), file]);
  }
  return [...groups].map(([folder, some]) => ({ folder, files: some }));
}

// Groups of files that are small enough for one request each.
export function chunks(files) {
  const out = [[]];
  let bytes = 0;
  for (const file of files) {
    const last = out[out.length - 1];
    if (last.length && (last.length >= CHUNK_FILES || bytes + file.size > CHUNK_BYTES)) {
      out.push([file]);
      bytes = file.size;
    } else {
      last.push(file);
      bytes += file.size;
    }
  }
  return out.filter((some) => some.length);
}

// Makes an element accept dropped files.
export function dropTarget(node, handle) {
  let depth = 0;
  const hasFiles = (event) => [...event.dataTransfer.types].some((type) => type === "Files" || type === "text/itl");
  node.addEventListener("dragenter", (event) => {
    if (!hasFiles(event)) return;
    event.preventDefault();
    depth += 1;
    node.classList.add("over");
  });
  node.addEventListener("dragover", (event) => { if (hasFiles(event)) event.preventDefault(); });
  node.addEventListener("dragleave", () => {
    depth = Math.max(0, depth - 1);
    if (!depth) node.classList.remove("over");
  });
  node.addEventListener("drop", (event) => {
    event.preventDefault();
    event.stopPropagation();
    depth = 0;
    node.classList.remove("over");
    handle(event.dataTransfer);
  });
}
